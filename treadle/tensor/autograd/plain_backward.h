#pragma once
// Keeps a plain backward() out of the nodes and hooks of a distributed pass: it would write `.grad` of all leaves that
// it reaches, behind the context's back. Checkpointing that recomputes its segment and calls backward() on it is the
// usual case. libtorch asks nobody before such a backward but its default engine, which others may be put in place of,
// as its Python half does.

namespace treadle::autograd {

// From the first call on, for good and for the whole process: a backward() that is called inside a node of a pass and
// does not name its leaves (`inputs`) throws StateError before it does anything. torch::autograd::grad is not touched.
// Any thread.
void refusePlainBackwardInNodes();

// How many calls of backward() or grad() are under way on this thread, one in a node of the other, since that call; a
// distributed pass that runs nodes here counts as one. libtorch continues on other threads at a depth of 60: there it
// is less than that.
int backwardDepth();

}  // namespace treadle::autograd

#pragma once
// Backward passes across workers: how they begin and run. How they end is in pass_end.h.
//
// The worker that calls backward, and every worker that gets gradients for one of its sends, runs the pass
// over its own part of the graph (pass.h). In SMART mode the one that called first tells all others which of their
// sends take part, so that they can count while the first gradients are computed; gradients that come before that word
// wait for it. Receive nodes send their gradients on; each such message is a call that is answered when the callee has
// nothing left to do for it, by Dijkstra and Scholten's rule: the message that found the callee idle is answered when
// it is idle again and all its own messages are answered, every other at once. So the roots' worker knows when the pass
// is over everywhere, in any graph, circular ones too. Then it ends the pass on all workers that took part.

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/autograd/contexts.h"
#include "treadle/tensor/autograd/options.h"
#include "treadle/tensor/autograd/pass_messages.h"
#include "treadle/tensor/autograd/root.h"
#include "treadle/tensor/bridge/tensor_codec.h"

namespace treadle::autograd {

// Runs a whole pass from `roots` and returns when all gradients are in the contexts of all workers. Throws
// the failure of any worker, with its name; the context is of no use then. Blocks the calling thread, which
// reads the answers itself; any thread, but one pass of a context at a time.
// The deadline is `options.timeout` after the user's call, which may have waited before.
void runBackward(Worker& worker, ContextPtr context, std::vector<Root> roots, const BackwardOptions& options,
                 TimePoint deadline);

// As it travels with the pass's messages.
PassId idOf(const Pass& pass);

// The pass has ended nowhere by that.
EndedRanks onBegin(CallContext& call, const BeginMessage& message);
rpc::AnswerThen<EndedRanks> onGradients(CallContext& call, GradientMessage message);

// What distributed autograd needs on every worker: the functions treadle.autograd.* of docs/protocol/autograd.md.
Functions backwardFunctions();

}  // namespace treadle::autograd

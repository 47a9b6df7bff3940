#pragma once
// Backward passes across workers: what is sent for them and how they end.
//
// The worker that calls backward, and every worker that gets gradients for one of its sends, runs the pass
// over its own part of the graph (pass.h). Receive nodes send their gradients on; each such message is a call
// that is answered when the callee has nothing left to do for it, by Dijkstra and Scholten's rule: the
// message that found the callee idle is answered when it is idle again and all its own messages are answered,
// every other at once. So the roots' worker knows when the pass is over everywhere, in any graph, circular
// ones too. Then it ends the pass on all workers that took part.

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/autograd/contexts.h"
#include "treadle/tensor/autograd/options.h"
#include "treadle/tensor/autograd/root.h"
#include "treadle/tensor/bridge/tensor_codec.h"

namespace treadle::autograd {

// What a receive node sends to where its message came from. Answered when the callee is idle for it, see
// above; a failure of the pass at the callee is the answer too. docs/protocol/autograd.md has the fields as
// bytes.
struct GradientMessage {
  int64_t context = 0;
  int64_t pass = 0;
  bool retainGraph = false;
  int64_t message = 0;                // the send that these are the gradients of
  std::vector<at::Tensor> gradients;  // one per tensor of it that takes part; undefined: none
};

// The pass is over: whoever gets this ends it and tells those whom it had sent messages of the context.
// Answered when they have answered; each worker passes it on once, so it also ends in circles.
struct FinishMessage {
  int64_t context = 0;
  int64_t pass = 0;
  std::string failure;  // empty: the pass went well
};

// Runs a whole pass from `roots` and returns when all gradients are in the contexts of all workers. Throws
// the failure of any worker, with its name; the context is of no use then. Blocks the calling thread, which
// reads the answers itself; any thread, but one pass of a context at a time.
void runBackward(Worker& worker, const ContextPtr& context, std::vector<Root> roots, const BackwardOptions& options);

// Ends a context here and on all workers that it reached, without waiting for them: each passes the word on, but not
// to the one that told it.
// Idempotent. A worker that a late call reaches afterwards refuses it (Contexts::arrived).
void releaseEverywhere(Worker& worker, int64_t contextId, std::optional<int> toldBy = {});

// The functions that these need on every worker: treadle.autograd.gradients, .finish and .release.
Functions backwardFunctions();

// StateError for a mode that is not there.
void checkMode(AutogradMode mode);

}  // namespace treadle::autograd

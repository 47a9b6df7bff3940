#pragma once
// How backward passes and contexts end on all workers (docs/protocol/autograd.md). Any thread.

#include <optional>
#include <vector>

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/autograd/contexts.h"
#include "treadle/tensor/autograd/pass_messages.h"

namespace treadle::autograd {

// Ranks to which this worker has sent messages of the context, except itself and `knowing`: a tree of those reaches
// every worker that has heard of it. When the context has ended no more are added, so none is missed.
std::vector<int> toTell(const Worker& worker, ContextState& context, const EndedRanks& knowing);

// Ends the pass on this worker; false when it had ended here before.
bool finishHere(Worker& worker, const ContextPtr& context, const FinishMessage& message, Status& outcome);

// `from`: who reports the end, this worker itself where it has called backward. On `others` and here, at the same time:
// callbacks of the pass (Pass::onFinish) may wait for those on other workers. In FAST mode, and after a failure, the
// others tell those behind them. Returns when it has ended there, or at the deadline, with the first failure; a
// cancelled or timed-out callback counts only if nothing else failed. A context in which a pass ended badly takes no
// other.
Status finishEverywhere(Worker& worker, const ContextPtr& context, const FinishMessage& message, int from,
                        const std::vector<int>& others, TimePoint deadline = kNever);
void onFinish(CallContext& call, const FinishMessage& message);

// Ends a context here and on all workers that it reached, without waiting for them: each passes the word on, but not
// to the one that told it.
// Idempotent. A worker that a late call reaches afterwards refuses it (Contexts::arrived).
void releaseEverywhere(Worker& worker, int64_t contextId, std::optional<int> toldBy = {});
void onRelease(CallContext& call, int64_t contextId);

// What a worker's contexts need of the network. Who drops what it received tells the sender, by a call that may wait
// for another message to go with.
ContextsNetwork networkOf(Worker& worker);

// The caller has a context of this worker's, and wants to hear of its end. NotFound when that was.
void onAdopt(CallContext& call, int64_t contextId);

// The tensors of messages that this worker sent are gone: so goes the graph behind them.
void onDropped(CallContext& call, int64_t contextId, const std::vector<int64_t>& messageIds);

}  // namespace treadle::autograd

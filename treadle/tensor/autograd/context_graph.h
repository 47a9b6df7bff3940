#pragma once
// One autograd context as one worker knows it: the messages that left and arrived in its forward pass, and
// the gradients its backward passes left here. The network half makes one per context and worker, records
// messages in it, and runs passes (pass.h) over it. Any thread may call it.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/tensor/autograd/ancestry.h"
#include "treadle/tensor/autograd/gradients.h"
#include "treadle/tensor/autograd/handler_runs.h"
#include "treadle/tensor/autograd/options.h"
#include "treadle/tensor/autograd/recv_node.h"
#include "treadle/tensor/autograd/root.h"
#include "treadle/tensor/autograd/send_node.h"
#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::autograd {

// What the receiver of a message must be told of it.
struct Departure {
  std::vector<int64_t> indexes;  // which of its tensors need a gradient back; when none do, the rest means nothing
  int64_t messageId = -1;
  LineagePtr lineage;  // of the message, but itself; null in FAST mode
};

class ContextGraph {
 public:
  // As worker `rank` knows it. `received`: who is told when what came is dropped.
  ContextGraph(int64_t contextId, int rank, AutogradMode mode,
               std::shared_ptr<ReceivedMessages> received = std::make_shared<ReceivedMessages>())
      : contextId_(contextId), rank_(rank), mode_(mode), ancestry_(contextId), received_(std::move(received)) {}
  ContextGraph(const ContextGraph&) = delete;
  ContextGraph& operator=(const ContextGraph&) = delete;

  int64_t contextId() const { return contextId_; }
  int rank() const { return rank_; }
  AutogradMode mode() const { return mode_; }

  // Records that a message with `tensors` leaves; nothing when none of them needs a gradient back.
  // To be called on the thread that makes the call, before the tensors are let go. FailedPrecondition for a tensor that
  // depends on one that came in another context (SMART mode; in FAST mode the pass says so).
  Result<Departure> addSend(int peerRank, std::string function, std::span<const at::Tensor> tensors);

  // Records that a message arrived, and makes its receive node the grad_fn of `tensors`: the ones that the
  // sender named, in its order. InvalidArgument for a message id that this sender used before or a tensor that cannot
  // carry a gradient; DataLoss for a lineage with messages that this worker never sent. What is received is known for
  // as long as any of the tensors lives, or what is made of them.
  Status addReceive(MessageInfo message, const LineagePtr& lineage, std::vector<at::Tensor>& tensors);

  // SMART mode: the sends, of all workers, that these depend on. FailedPrecondition as for addSend.
  Result<Lineage> lineageOf(const std::vector<Root>& roots);

  // Null when there is none.
  NodeRef<SendNode> findSend(int64_t messageId) const;

  // Messages that this worker has sent have the numbers below.
  int64_t numbersGiven() const;

  // By message id.
  std::vector<NodeRef<SendNode>> sends() const;
  ReceivedMessages& received() const { return *received_; }
  HandlerRuns& handlerRuns() { return handlerRuns_; }

  // What the passes left on this worker; see gradients.h.
  Gradients& gradients() { return gradients_; }
  const Gradients& gradients() const { return gradients_; }
  at::Tensor gradient(const at::Tensor& leaf) const { return gradients_.gradient(leaf); }

  // No gradient comes for these any more: forget them, so that the memory goes and a later forward and backward in the
  // same context do not wait for them.
  void forget(std::span<const int64_t> sentIds);
  // The same at the word of the worker to whom they went; what went to others stays.
  void forgetSentTo(int rank, std::span<const int64_t> sentIds);
  // What is remembered of nodes is of a graph that was consumed.
  void clearAncestry();

 private:
  Status checkLineage(const LineagePtr& lineage) const;
  Result<LineagePtr> lineageOf(const torch::autograd::edge_list& edges);

  const int64_t contextId_;
  const int rank_;
  const AutogradMode mode_;
  mutable std::mutex mutex_;
  int64_t nextMessageId_ = 0;                   // guarded by mutex_
  std::map<int64_t, NodeRef<SendNode>> sends_;  // guarded by mutex_
  std::mutex ancestryMutex_;                    // a walk may take long; taken alone
  Ancestry ancestry_;                           // guarded by ancestryMutex_
  const std::shared_ptr<ReceivedMessages> received_;
  Gradients gradients_;
  HandlerRuns handlerRuns_;
};

}  // namespace treadle::autograd

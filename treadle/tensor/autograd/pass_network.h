#pragma once
// The network's side of one backward pass on one worker: sends its gradients on, and answers for those that came when
// the pass has nothing left to do for them (backward.h). Any thread.

#include <set>

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/autograd/contexts.h"
#include "treadle/tensor/autograd/pass_messages.h"

namespace treadle::autograd {

// The pass owns it, and it owns the context, which lists the pass while that lives: ContextState::end cuts this
// circle when a context ends early.
class PassNetwork final : public GradientSink {
 public:
  PassNetwork(Worker& worker, ContextPtr context) : worker_(worker), context_(std::move(context)) {}

  Status sendGradients(Pass& pass, int rank, std::vector<MessageGradients> messages) override;
  void onIdle(Pass& pass) override;
  std::string nameOf(int rank) const override;

  // Runs the pass on this thread for as long as it has something to do.
  static void runUntilIdle(Pass& pass);

  // ---- on the worker that called backward
  // SMART mode: tells the other workers which of their sends take part. Before the pass runs.
  void begin(Pass& pass, const Lineage& sends);
  // The pass that this worker itself began ends when all others have.
  void setOwnPass(int64_t passId) { ownPass_ = passId; }
  // Where the pass has ended, as far as the answers to this worker's gradients told.
  EndedRanks endedRanks();
  // Waits for the answers to what was sent so far, one after the other, until the pass has failed. The waiting thread
  // reads them from their sockets itself, so that no other thread has to wake it; a failure reaches the pass.
  void readAnswers(const Pass& pass, TimePoint deadline);
  // The time limit has passed: the pass fails, naming whose answers have not come.
  void giveUp(Pass& pass, Duration limit);

 private:
  template <auto Function, class Message>
  void send(Pass& pass, int rank, const Message& message);
  bool nobodyIsBehind(int64_t passId);
  void endAndAnswer(Pass& pass, Promise<EndedRanks> engagedBy);
  void ended(const EndedRanks& ranks);
  void stopWaiting();

  Worker& worker_;
  const ContextPtr context_;
  int64_t ownPass_ = 0;
  Mutex mutex_;
  std::vector<std::pair<int, Future<EndedRanks>>> answers_ TREADLE_GUARDED_BY(mutex_);  // by whom
  std::set<int32_t> ended_ TREADLE_GUARDED_BY(mutex_);
};

Result<std::shared_ptr<Pass>> makePass(Worker& worker, const ContextPtr& context, PassOptions options,
                                       std::vector<Root> roots);

}  // namespace treadle::autograd

#pragma once
// pushPull on this member: matches the tensors that members offer in any order (offer_book.h, and fusion_root.h on rank
// 0), and sums them in batches, all-reduces of a stream of their own (Stream::kFused) in the order that rank 0 decides.
// The group owns it.
//
// Any thread may call anything. The thread that has the inbox's turn does all the work, so that few locks are needed.
// Nothing takes long there: it neither waits nor copies data, which the operations do. `waitForTurnToEnd` waits, and so
// does the cancelling of a future.

#include <map>
#include <memory>
#include <set>

#include "treadle/core/base/unique_function.h"
#include "treadle/core/group/batch_memory.h"
#include "treadle/core/group/fusion_root.h"
#include "treadle/core/group/inbox.h"
#include "treadle/core/group/member_link.h"
#include "treadle/core/group/offer_book.h"
#include "treadle/core/group/offered_tensor.h"
#include "treadle/core/io/reactor.h"

namespace treadle::group {

class GroupCore;
struct Call;

class Fusion final : public std::enable_shared_from_this<Fusion> {
 public:
  struct Setup {
    io::Reactor& reactor;
    io::ContinueOn pool;
    MemberLink link;                  // of Stream::kFused
    std::string group;                // "group 'trainers'"
    std::shared_ptr<GroupCore> sums;  // does the operations of Stream::kFused
    std::shared_ptr<BatchMemory> memory;
    Duration stallReport;
    UniqueFunction<void(const Status&)> abandon;  // fails the whole group
  };
  explicit Fusion(Setup setup);

  // StateError: a tensor of this name is in flight. ResourceError: kMostOpenOffers are.
  Future<void> offer(std::string name, Signature signature, void* data, OfferLimit limit);

  // Offers or orders, on the reading thread. DataLoss for what no member sends: cut the sender off.
  Status onMessage(int member, Message message);

  // All that is in flight fails with `why`, and what comes later too. A sum in place must fail by itself.
  void fail(const Status& why);
  void waitForTurnToEnd() { inbox_.waitForTurnToEnd(); }

 private:
  using Task = UniqueFunction<void()>;
  using Offered = std::shared_ptr<OfferedTensor>;
  struct Batch {
    std::vector<Offered> tensors;
    Future<void> sum;
  };

  void use(Turn turn);
  void reserve(const std::string& name);
  void release(const std::string* name, size_t open);

  // In the turn; fusion.cc.
  void onOffer(const Offered& offered);
  void onBody(int member, MessageKind kind, Bytes body);
  Status takeOffers(int member, Bytes body);
  Status take(int member, Offers offers);
  Status takeOrders(Bytes body);
  Status apply(Orders orders);
  void exchange();
  void send(int member, MessageKind kind, std::vector<std::byte> body);
  void startBatch(const std::vector<Part>& parts);
  Call callOf(std::vector<BatchPart> parts);
  void onEnded(uint64_t number);

  // In the turn; fusion_failure.cc.
  void watch(TimePoint due);
  void onTimer();
  void onLate(const Offered& offered);
  void cancel(const Offered& offered);  // on any thread
  void onCancel(const Offered& offered);
  void onFail(const Status& why);
  void breakOff(const Status& why);
  void giveUp(const Offered& offered, const Status& why);
  void failOffer(const Offered& offered, const Status& why);
  void settle(const Offered& offered);
  void end(OfferedTensor& offered, const Status& why);

  io::Reactor& reactor_;
  const io::ContinueOn pool_;
  const MemberLink link_;
  const std::string group_;
  const std::shared_ptr<GroupCore> sums_;
  const Duration stallReport_;
  UniqueFunction<void(const Status&)> abandon_;
  const std::shared_ptr<BatchMemory> memory_;
  Inbox<Task> inbox_;

  Mutex mutex_;
  std::set<std::string> names_ TREADLE_GUARDED_BY(mutex_);  // whose futures are not ready
  size_t open_ TREADLE_GUARDED_BY(mutex_) = 0;              // those of `offered_`, and those on their way there
  std::vector<size_t> unread_ TREADLE_GUARDED_BY(mutex_);   // bytes in the inbox, by sender

  // In the turn.
  OfferBook book_;
  std::unique_ptr<FusionRoot> root_;  // on rank 0
  // By number; until its future is ready, rank 0 has done with it and no part of it is under way.
  std::map<uint64_t, Offered> offered_;
  std::map<uint64_t, Batch> running_;  // by number
  uint64_t nextBatch_ = 0;
  Status failure_;
  TimePoint timerDue_ = kNever;
  io::Reactor::TimerId timer_ = 0;
};

}  // namespace treadle::group

#pragma once
// Rank 0's part in matching tensors by name: it finds the complete ones, orders the batches and decides which tensors
// fail. All members get the same batches in the same order, each with the numbers of its own offers. Pure logic; one
// thread at a time.
//
// A batch is ordered while fewer than kUnderWay are, so offers that come in the meantime go together in the next one.

#include <string>
#include <utility>
#include <vector>

#include "treadle/core/group/batch_cutter.h"
#include "treadle/core/group/offer_table.h"

namespace treadle::group {

inline constexpr size_t kUnderWay = 2;  // batches

class FusionRoot {
 public:
  // `members`: as messages name them, by rank. `group`: "group 'trainers'".
  FusionRoot(std::vector<std::string> members, std::string group);

  // DataLoss for what no member sends; some of it may have been taken, so the group must end.
  Status take(int member, Offers offers, TimePoint now);
  // The batch with this number, counted from 0, has ended on this member. If it has failed, its tensors fail with all
  // elements that are left.
  void ended(uint64_t batch, const Status& status);

  // The messages to the members, by rank in the group, in the order to send them. Each is yielded once.
  std::vector<std::pair<int, Orders>> takeOrders();

  // A line for the log for each of some tensors that have waited for `limit` for members that have not offered them,
  // and how many more there are. Each tensor is reported once; the next lines come a second later at the earliest.
  std::vector<std::string> stalls(TimePoint now, Duration limit);
  // When `stalls` has something to report; kNever: nothing waits.
  TimePoint nextStall(Duration limit) const;

  // ResourceExhausted when more tensors have failed that some members have not offered than this worker keeps.
  Status overflow() const;

  const OfferTable& table() const { return table_; }

 private:
  static constexpr size_t kComparisons = 4'000'000;  // per second: a few ms on a thread that reads

  struct UnderWay {
    uint64_t batch;
    std::vector<uint64_t> tensors;  // whose last elements have not been ordered
  };

  Status takeOffer(int member, Offer offer, TimePoint now);
  Status takeWithdrawal(int member, const Failed& withdrawal);
  void fail(NamedTensor& tensor, Status why);
  void cut();
  void order(const BatchCutter::Batch& batch);
  Orders& ordersFor(int member);
  void sendFailure(int member, uint64_t number, const Status& why);
  Status mismatch(const NamedTensor& tensor, int member, const Signature& theirs) const;
  // "it has not been offered by worker 'w2' (rank 2)", after a similar name.
  std::string whyIncomplete(const NamedTensor& tensor);
  std::string misspelt(const NamedTensor& tensor);
  void allowHints(TimePoint now);
  std::string namesOf(const std::vector<int>& members) const;

  const std::vector<std::string> members_;
  const std::string group_;
  OfferTable table_;
  BatchCutter cutter_;
  std::vector<uint64_t> nextNumber_;           // of the members' offers, by rank
  std::vector<std::vector<Orders>> outgoing_;  // by rank
  std::vector<UnderWay> underWay_;
  uint64_t nextBatch_ = 0;
  // Comparisons of bytes that may still be made for hints at similar names, and when that was all that is allowed.
  size_t comparisons_ = kComparisons;
  TimePoint allowed_;
  TimePoint nextReport_;  // of stalls, at the earliest
};

}  // namespace treadle::group

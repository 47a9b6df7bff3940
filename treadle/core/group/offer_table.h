#pragma once
// The tensors that members have offered to the group's rank 0. A name is one tensor on all members: the
// n-th offer of a name by one member meets the n-th by each other member, so an offer that comes after the others have
// given up fails like theirs and is not taken for one of a later round. Pure logic; one thread at a time.
//
// Holds a tensor until all members have offered it and it has been dropped or has failed: the size is bounded by the
// open offers of all members (the caller limits them) and by the failed tensors that somebody has not offered yet.

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "treadle/core/base/clock.h"
#include "treadle/core/group/fusion_messages.h"

namespace treadle::group {

struct NamedTensor {
  static constexpr uint64_t kNone = UINT64_MAX;

  uint64_t id = 0;  // in the order of the first offers
  std::string name;
  Signature signature;            // as `first` has offered it
  int first = 0;                  // a rank
  std::vector<uint64_t> numbers;  // of the members' offers, by rank; kNone: not offered
  size_t offered = 0;             // members
  TimePoint since;                // its first offer
  bool reported = false;          // that it has stalled
  Status failure;

  bool offeredBy(int member) const { return numbers[static_cast<size_t>(member)] != kNone; }
  bool complete() const { return offered == numbers.size(); }
  bool waits() const { return failure.ok() && !complete(); }
  std::vector<int> missing() const;  // ranks
};

class OfferTable {
 public:
  explicit OfferTable(int members) : open_(static_cast<size_t>(members)) {}

  // The tensor that the member's offer belongs to; nullptr when the member has an open one of this name. If the tensor
  // has failed already, the offer is closed at once, and with the last member's the tensor is to be dropped.
  NamedTensor* add(int member, uint64_t number, Offer offer, TimePoint now);

  // nullptr: the offer is not open.
  NamedTensor* find(int member, uint64_t number);
  NamedTensor* find(uint64_t id);

  // All its offers are closed. It stays until all members have offered it.
  void fail(NamedTensor& tensor, Status why);
  void drop(uint64_t id);

  size_t openOf(int member) const { return open_[static_cast<size_t>(member)].size(); }
  size_t failed() const { return failed_; }
  size_t size() const { return tensors_.size(); }
  // By id, so the oldest first.
  const std::map<uint64_t, NamedTensor>& tensors() const { return tensors_; }
  std::map<uint64_t, NamedTensor>& tensors() { return tensors_; }

 private:
  NamedTensor& make(Offer offer, TimePoint now);
  void close(const NamedTensor& tensor);

  std::map<uint64_t, NamedTensor> tensors_;
  // Those of one name in the order of their ids: some that have failed, then one at most that has not. A member has
  // offered the first few of them.
  std::unordered_map<std::string, std::vector<uint64_t>> byName_;
  std::vector<std::unordered_map<uint64_t, uint64_t>> open_;  // by rank: ids by the numbers of open offers
  uint64_t nextId_ = 0;
  size_t failed_ = 0;
};

}  // namespace treadle::group

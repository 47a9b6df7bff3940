#pragma once
// When pending calls are late: their deadlines in order. Not thread-safe.
//
// A call that ends takes nothing out. Its entry stays until it is due, or until a call is added while there are over
// twice as many entries as pending calls, and some more. Budget of `add`: no allocation as a rule, and two comparisons
// where time limits are equal, as a later call then has a later deadline.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "treadle/core/base/clock.h"

namespace treadle::rpc {

class Deadlines {
 public:
  // `spare`: how many entries are kept beyond twice the number of pending calls.
  explicit Deadlines(size_t spare = 1024) : spare_(spare) {}

  // `pending`: how many calls are waited for, this one too. `isPending(id)` says whether one of them has that id.
  template <class F>
  void add(TimePoint due, uint64_t id, size_t pending, F isPending) {
    if (heap_.size() > 2 * pending + spare_) {
      std::erase_if(heap_, [&](const Entry& entry) { return !isPending(entry.second); });
      std::make_heap(heap_.begin(), heap_.end(), later);
    }
    heap_.emplace_back(due, id);
    std::push_heap(heap_.begin(), heap_.end(), later);
  }

  // Takes out the pending calls that are due at `now`, in the order of their deadlines.
  template <class F>
  std::vector<uint64_t> takeDue(TimePoint now, F isPending) {
    std::vector<uint64_t> due;
    for (; !heap_.empty() && heap_.front().first <= now; pop())
      if (isPending(heap_.front().second)) due.push_back(heap_.front().second);
    return due;
  }

  // The earliest deadline of a pending call; kNever when there is none.
  template <class F>
  TimePoint next(F isPending) {
    while (!heap_.empty() && !isPending(heap_.front().second)) pop();
    return heap_.empty() ? kNever : heap_.front().first;
  }

  size_t size() const { return heap_.size(); }  // also of calls that have ended

 private:
  using Entry = std::pair<TimePoint, uint64_t>;

  static bool later(const Entry& one, const Entry& other) { return one.first > other.first; }
  void pop() {
    std::pop_heap(heap_.begin(), heap_.end(), later);
    heap_.pop_back();
  }

  const size_t spare_;
  std::vector<Entry> heap_;  // the earliest first
};

}  // namespace treadle::rpc

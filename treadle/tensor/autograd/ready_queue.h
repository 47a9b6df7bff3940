#pragma once
// The nodes of a pass that can run now, in libtorch's order: the highest sequence number first, that is what
// the forward pass did last; among equals in order of arrival, so that a run can be repeated. One thread at a
// time.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "treadle/tensor/autograd/dependencies.h"

namespace treadle::autograd {

class ReadyQueue {
 public:
  bool empty() const { return heap_.empty(); }

  // O(log n) for n nodes that are ready at once; the count of arrivals makes the order total.
  void push(ReadyNode ready) {
    uint64_t sequence = ready.node->sequence_nr();
    heap_.push_back({sequence, arrivals_++, std::move(ready)});
    std::push_heap(heap_.begin(), heap_.end(), runsLater);
  }

  ReadyNode pop() {
    std::pop_heap(heap_.begin(), heap_.end(), runsLater);
    ReadyNode ready = std::move(heap_.back().ready);
    heap_.pop_back();
    return ready;
  }

  void clear() { heap_.clear(); }

 private:
  struct Entry {
    uint64_t sequence;
    uint64_t arrival;
    ReadyNode ready;
  };
  // For the heap functions of <algorithm>, which put the largest first.
  static bool runsLater(const Entry& a, const Entry& b) {
    return a.sequence != b.sequence ? a.sequence < b.sequence : a.arrival > b.arrival;
  }

  std::vector<Entry> heap_;
  uint64_t arrivals_ = 0;
};

}  // namespace treadle::autograd

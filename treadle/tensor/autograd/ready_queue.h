#pragma once
// The nodes of a pass that can run now: first receive nodes, so that their gradients leave together and at once; then
// libtorch's order, the highest sequence number first, that is what the forward pass did last; among equals in order of
// arrival, so that a run can be repeated. What is left of nodes that have run in part comes when nothing else is ready.
// One thread at a time.

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
    const Turn turn = RecvNode::from(*ready.node) != nullptr ? Turn::kFirst
                      : ready.edgesLeft.empty()              ? Turn::kUsual
                                                             : Turn::kLast;
    Entry entry{turn, ready.node->sequence_nr(), arrivals_++, {}};
    entry.ready = std::move(ready);
    heap_.push_back(std::move(entry));
    std::push_heap(heap_.begin(), heap_.end(), runsLater);
  }

  ReadyNode pop() {
    std::pop_heap(heap_.begin(), heap_.end(), runsLater);
    ReadyNode ready = std::move(heap_.back().ready);
    heap_.pop_back();
    return ready;
  }

  // Whether what comes next is a receive node.
  bool receiveIsNext() const { return !heap_.empty() && heap_.front().turn == Turn::kFirst; }

 private:
  enum class Turn : uint8_t { kFirst, kUsual, kLast };
  struct Entry {
    Turn turn;
    uint64_t sequence;
    uint64_t arrival;
    ReadyNode ready;
  };
  // For the heap functions of <algorithm>, which put the largest first.
  static bool runsLater(const Entry& a, const Entry& b) {
    if (a.turn != b.turn) return a.turn > b.turn;
    return a.sequence != b.sequence ? a.sequence < b.sequence : a.arrival > b.arrival;
  }

  std::vector<Entry> heap_;
  uint64_t arrivals_ = 0;
};

}  // namespace treadle::autograd

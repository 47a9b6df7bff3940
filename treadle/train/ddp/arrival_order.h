#pragma once
// The order in which the gradients of one pass have come. Pure; one thread at a time.

#include <cstddef>
#include <vector>

namespace treadle::ddp {

class ArrivalOrder {
 public:
  explicit ArrivalOrder(size_t parameters) : cameAt_(parameters) {}

  // A pass begins.
  void clear();
  // The gradient of a parameter has come; of several times in one pass the last one counts.
  void add(size_t parameter) { cameAt_[parameter] = ++count_; }

  bool isEmpty() const { return count_ == 0; }
  // The indexes of all parameters: those that have come, then the others from the last to the first.
  std::vector<size_t> order() const;

 private:
  std::vector<size_t> cameAt_;  // by parameter; 0: it has not come
  size_t count_ = 0;
};

}  // namespace treadle::ddp

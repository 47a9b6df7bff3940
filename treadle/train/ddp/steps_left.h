#pragma once
// The parts of an averaged pass (GradientExchange::parts) that an optimizer within the pass has not stepped yet, and
// the operations that end before each. A value; owned by a reducer, and used under its lock.

#include <cstddef>
#include <utility>
#include <vector>

namespace treadle::ddp {

class StepsLeft {
 public:
  // `ends`: by part, the number of operations of the pass that end before its step, which is not less than that of the
  // part before. `isLeft`: by part, whether it has something to step.
  void open(std::vector<size_t> ends, std::vector<bool> isLeft) {
    ends_ = std::move(ends);
    isLeft_ = std::move(isLeft);
    areAllLeft_ = true;
  }
  void clear() { open({}, {}); }
  void stepped(size_t part) {
    isLeft_[part] = false;
    areAllLeft_ = false;
  }

  bool any() const { return !parts().empty(); }
  // None was stepped since open().
  bool areAllLeft() const { return areAllLeft_; }
  bool has(size_t part) const { return part < isLeft_.size() && isLeft_[part]; }
  std::vector<size_t> parts() const {
    std::vector<size_t> left;
    for (size_t part = 0; part < isLeft_.size(); ++part)
      if (isLeft_[part]) left.push_back(part);
    return left;
  }

  // Those of the part alone: from `first` on, and before `end`.
  struct Operations {
    size_t first, end;
  };
  Operations operationsOf(size_t part) const { return {part == 0 ? 0 : ends_[part - 1], ends_[part]}; }

 private:
  std::vector<size_t> ends_;
  std::vector<bool> isLeft_;
  bool areAllLeft_ = true;
};

}  // namespace treadle::ddp

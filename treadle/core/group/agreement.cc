#include "treadle/core/group/agreement.h"

#include <utility>

#include "treadle/core/group/binomial_tree.h"

namespace treadle::group {

Agreement::Agreement(Kind kind, int size, int self)
    : kind_(kind),
      size_(size),
      self_(self),
      heard_(static_cast<size_t>(size)),
      missing_(kind == Kind::kTree ? static_cast<int>(childrenOf(self, size).size()) : size - 1) {}

bool Agreement::hear(int member) {
  if (heard(member)) return false;
  const bool isParent = kind_ == Kind::kTree && member == parentOf(self_);
  if (isParent && !sentUp_) return false;
  if (kind_ == Kind::kTree && !isParent && parentOf(member) != self_) return false;
  heard_[static_cast<size_t>(member)] = true;
  if (!isParent) --missing_;
  return true;
}

std::vector<int> Agreement::due() {
  std::vector<int> members;
  if (!begun_) return members;
  if (kind_ == Kind::kAllToAll) {
    // From the right neighbour on, so that the members do not all send to the same one first.
    if (!std::exchange(sentToRest_, true))
      for (int step = 1; step < size_; ++step) members.push_back((self_ + step) % size_);
    return members;
  }
  if (missing_ == 0 && !std::exchange(sentUp_, true) && self_ != 0) members.push_back(parentOf(self_));
  if (agreed() && !std::exchange(sentToRest_, true))
    for (int child : childrenOf(self_, size_)) members.push_back(child);
  return members;
}

bool Agreement::agreed() const {
  if (!begun_ || missing_ > 0) return false;
  return kind_ == Kind::kAllToAll || self_ == 0 || heard(parentOf(self_));
}

std::vector<int> Agreement::awaited() const {
  std::vector<int> members;
  for (int member = 0; member < size_; ++member) {
    const bool sends = kind_ == Kind::kAllToAll ? member != self_ : member != 0 && parentOf(member) == self_;
    if (sends && !heard(member)) members.push_back(member);
  }
  const bool isBelow = kind_ == Kind::kTree && self_ != 0;
  if (members.empty() && isBelow && !heard(parentOf(self_))) members.push_back(parentOf(self_));
  return members;
}

}  // namespace treadle::group

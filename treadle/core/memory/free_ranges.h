#pragma once
// The parts of a stretch [0, size) that nobody uses, neighbours joined. First fit, lowest address first. Plain value.

#include <cstddef>
#include <iterator>
#include <map>
#include <optional>

namespace treadle::memory {

class FreeRanges {
 public:
  explicit FreeRanges(size_t size) {
    if (size > 0) ranges_.emplace(0, size);
  }

  // The start of `size` bytes, which are in use from now on.
  std::optional<size_t> take(size_t size) {
    for (auto range = ranges_.begin(); range != ranges_.end(); ++range) {
      if (range->second < size) continue;
      auto [begin, length] = *range;
      ranges_.erase(range);
      if (length > size) ranges_.emplace(begin + size, length - size);
      return begin;
    }
    return std::nullopt;
  }

  // Exactly [begin, begin + size); false when a part of it is in use or beyond the end.
  bool takeAt(size_t begin, size_t size) {
    auto range = ranges_.upper_bound(begin);
    if (size == 0 || range == ranges_.begin()) return false;
    auto [start, length] = *--range;
    if (begin - start > length || size > length - (begin - start)) return false;
    ranges_.erase(range);
    if (begin > start) ranges_.emplace(start, begin - start);
    if (size_t end = begin + size; end < start + length) ranges_.emplace(end, start + length - end);
    return true;
  }
  template <class F>
  void forEach(F visit) const {
    for (auto [begin, size] : ranges_) visit(begin, size);
  }
  bool empty() const { return ranges_.empty(); }

  // What `take` gave, whole or in part.
  void give(size_t begin, size_t size) {
    auto next = ranges_.lower_bound(begin);
    if (next != ranges_.begin()) {
      auto before = std::prev(next);
      if (before->first + before->second == begin) {
        begin = before->first;
        size += before->second;
        ranges_.erase(before);
      }
    }
    if (next != ranges_.end() && begin + size == next->first) {
      size += next->second;
      ranges_.erase(next);
    }
    ranges_.emplace(begin, size);
  }

 private:
  std::map<size_t, size_t> ranges_;  // begin -> size
};

}  // namespace treadle::memory

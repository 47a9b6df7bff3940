#pragma once
// How the elements of a large operation are cut: into a segment for each member, and each segment into chunks, as many
// in each, which travel one by one. Pure logic.

#include <algorithm>
#include <cstdint>

#include "treadle/core/group/messages.h"

namespace treadle::group {

// Elements [begin, end).
struct Range {
  uint64_t begin = 0, end = 0;
  uint64_t count() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

class Segments {
 public:
  // `parts`: how many segments, at least 1. If the elements do not divide evenly, the first segments have one more.
  Segments(const Description& description, uint64_t parts)
      : even_(description.count / parts),
        longer_(description.count % parts),
        chunkElements_(std::max<uint64_t>(1, description.chunkBytes / sizeOf(description.dataType))),
        chunks_(std::max<uint64_t>(1, (largest() + chunkElements_ - 1) / chunkElements_)) {}

  uint64_t chunks() const { return chunks_; }  // of a segment; the last may be empty

  Range chunk(uint64_t segment, uint64_t index) const {
    const uint64_t first = segment * even_ + std::min(segment, longer_);
    const uint64_t last = first + even_ + (segment < longer_ ? 1 : 0);
    const uint64_t begin = std::min(last, first + index * chunkElements_);
    return {begin, std::min(last, begin + chunkElements_)};
  }

 private:
  uint64_t largest() const { return even_ + (longer_ > 0 ? 1 : 0); }

  uint64_t even_, longer_, chunkElements_, chunks_;
};

}  // namespace treadle::group

#pragma once
// The rows of a sparse all-reduce as they travel (docs/protocol/group.md): those rows of a range of rows that a member
// has. Words of 64 bits say which they are: the offset of each row in the range, upwards, or a bitmap of the range
// where that takes no more words. The elements of the rows follow, by offset. So a block never takes more than the
// dense rows and a bit for each.
//
// Pure values and functions; one thread at a time.

#include <cstdint>

#include "treadle/core/base/buffer.h"

namespace treadle::group {

struct RowLayout {
  uint64_t range = 0;  // offsets are below
  uint64_t count = 0;  // rows of the block; at most the range
  uint64_t rowBytes = 0;

  uint64_t bitmapWords() const { return range / 64 + (range % 64 > 0 ? 1 : 0); }
  bool isBitmap() const { return bitmapWords() <= count; }
  uint64_t words() const { return isBitmap() ? bitmapWords() : count; }
  // UINT64_MAX when the size overflows.
  uint64_t sizeBytes() const;
};

struct RowBlock {
  RowLayout layout;
  Buffer memory;  // none in a block of no bytes

  Bytes bytes() const { return memory.bytes(); }
  // The elements, after the words; aligned to 8. Of a block that has all its memory.
  MutableBytes values() const { return memory.mutableBytes().subspan(layout.words() * sizeof(uint64_t)); }
  // Takes all its memory, uninitialised. Throws std::bad_alloc.
  void allocate();
  // Takes memory for the first `bytes` of the block, which a peer sends in pieces. The memory doubles, so that a block
  // is copied about once; it stays below twice `bytes`, whatever the layout says. Throws std::bad_alloc.
  void growTo(uint64_t bytes);
  // The words name as many rows as the layout has, in its range, each once. Bytes of a peer may not.
  bool isValid() const;
};

// The rows of a valid block, which outlives it, as runs of consecutive offsets: [begin, end).
class RowRuns {
 public:
  explicit RowRuns(const RowBlock& block);

  bool done() const { return begin_ == end_; }
  uint64_t begin() const { return begin_; }
  uint64_t end() const { return end_; }
  const std::byte* values() const { return values_; }  // of the row `begin`
  // Steps over the first rows of the run.
  void skip(uint64_t rows);

 private:
  void find();
  uint64_t word(uint64_t index) const;
  uint64_t nextBit(uint64_t from, bool value) const;

  const RowLayout layout_;
  const std::byte* const words_;
  const std::byte* values_;
  uint64_t begin_ = 0, end_ = 0;
  uint64_t listed_ = 0;  // offsets that have been read, without a bitmap
};

// Writes the rows of a block that has memory: all of them, by offset.
class RowWriter {
 public:
  explicit RowWriter(const RowBlock& block);

  // The next rows are [begin, end). Returns the place of their elements, which the caller writes.
  std::byte* add(uint64_t begin, uint64_t end);

 private:
  const RowLayout layout_;
  std::byte* const words_;
  std::byte* values_;
  uint64_t listed_ = 0;
};

}  // namespace treadle::group

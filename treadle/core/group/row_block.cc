#include "treadle/core/group/row_block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <new>

namespace treadle::group {
namespace {

constexpr uint64_t kWordBits = 64;
constexpr uint64_t kMostBytes = uint64_t{1} << 47;  // more than a process can address

uint64_t wordAt(const std::byte* words, uint64_t index) {
  uint64_t word = 0;
  std::memcpy(&word, words + index * sizeof word, sizeof word);
  return word;
}

void putWord(std::byte* words, uint64_t index, uint64_t word) {
  std::memcpy(words + index * sizeof word, &word, sizeof word);
}

bool isAscending(const RowLayout& layout, const std::byte* words) {
  for (uint64_t i = 0; i < layout.count; ++i) {
    const uint64_t offset = wordAt(words, i);
    if (offset >= layout.range || (i > 0 && offset <= wordAt(words, i - 1))) return false;
  }
  return true;
}

bool hasBits(const RowLayout& layout, const std::byte* words) {
  uint64_t bits = 0;
  for (uint64_t i = 0; i < layout.bitmapWords(); ++i) bits += static_cast<uint64_t>(std::popcount(wordAt(words, i)));
  const uint64_t used = layout.range % kWordBits;
  const bool isBehind = used > 0 && wordAt(words, layout.bitmapWords() - 1) >> used != 0;
  return bits == layout.count && !isBehind;
}

}  // namespace

uint64_t RowLayout::sizeBytes() const {
  uint64_t size = 0;
  // There are fewer than 2^59 words: a bitmap has no more, and a list is shorter than its bitmap.
  const bool fits = !__builtin_mul_overflow(count, rowBytes, &size) &&
                    !__builtin_add_overflow(size, words() * sizeof(uint64_t), &size);
  return fits ? size : UINT64_MAX;
}

void RowBlock::allocate() {
  const uint64_t size = layout.sizeBytes();
  if (size >= kMostBytes) throw std::bad_alloc();
  memory = size == 0 ? Buffer() : allocateBuffer(size);
}

void RowBlock::growTo(uint64_t bytes) {
  if (bytes <= memory.sizeBytes) return;
  Buffer larger = allocateBuffer(std::min(layout.sizeBytes(), std::max<uint64_t>(bytes, 2 * memory.sizeBytes)));
  if (memory.sizeBytes > 0) std::memcpy(larger.data, memory.data, memory.sizeBytes);
  memory = std::move(larger);
}

bool RowBlock::isValid() const {
  if (layout.count > layout.range || bytes().size() != layout.sizeBytes()) return false;
  return layout.isBitmap() ? hasBits(layout, memory.data) : isAscending(layout, memory.data);
}

RowRuns::RowRuns(const RowBlock& block)
    : layout_(block.layout), words_(block.memory.data), values_(block.values().data()) {
  find();
}

void RowRuns::skip(uint64_t rows) {
  begin_ += rows;
  values_ += rows * layout_.rowBytes;
  if (begin_ == end_) find();
}

// Leaves an empty run when there are no more.
void RowRuns::find() {
  if (layout_.isBitmap()) {
    begin_ = nextBit(end_, true);
    end_ = nextBit(begin_, false);
    return;
  }
  if (listed_ == layout_.count) return;
  begin_ = word(listed_++);
  for (end_ = begin_ + 1; listed_ < layout_.count && word(listed_) == end_; ++listed_) ++end_;
}

uint64_t RowRuns::word(uint64_t index) const { return wordAt(words_, index); }

// The first offset from `from` on whose bit has the value; the range when there is none.
uint64_t RowRuns::nextBit(uint64_t from, bool value) const {
  for (uint64_t at = from; at < layout_.range; at = (at / kWordBits + 1) * kWordBits) {
    const uint64_t bits = value ? word(at / kWordBits) : ~word(at / kWordBits);
    const uint64_t left = bits >> (at % kWordBits);
    if (left != 0) return std::min(layout_.range, at + static_cast<uint64_t>(std::countr_zero(left)));
  }
  return layout_.range;
}

RowWriter::RowWriter(const RowBlock& block)
    : layout_(block.layout), words_(block.memory.data), values_(block.values().data()) {
  if (layout_.isBitmap() && layout_.words() > 0) std::memset(words_, 0, layout_.words() * sizeof(uint64_t));
}

std::byte* RowWriter::add(uint64_t begin, uint64_t end) {
  std::byte* const place = values_;
  values_ += (end - begin) * layout_.rowBytes;
  if (!layout_.isBitmap()) {
    for (uint64_t offset = begin; offset < end; ++offset) putWord(words_, listed_++, offset);
    return place;
  }
  for (uint64_t at = begin; at < end;) {
    const uint64_t first = at % kWordBits, bits = std::min(kWordBits - first, end - at);
    const uint64_t ones = (bits == kWordBits ? UINT64_MAX : (uint64_t{1} << bits) - 1) << first;
    putWord(words_, at / kWordBits, wordAt(words_, at / kWordBits) | ones);
    at += bits;
  }
  return place;
}

}  // namespace treadle::group

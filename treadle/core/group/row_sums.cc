// Budget: packRows deals 16 bytes per row to their owners, sorts them unless they are in order, and copies each row
// once. sumRows steps through the rows twice, to count them and to add them. Consecutive rows that the same members
// have are one step, so that dense data is added as a dense all-reduce adds it; a step looks at all n blocks.

#include "treadle/core/group/row_sums.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

#include "treadle/core/group/half.h"

namespace treadle::group {
namespace {

struct OwnedRow {
  uint64_t offset, position;  // in the owner's range; in the input
};

// By owner. The rows of each are in the order of offsets, and of the input where these are equal.
std::vector<std::vector<OwnedRow>> rowsByOwner(std::span<const uint64_t> indices, const RowRanges& ranges) {
  std::vector<std::vector<OwnedRow>> owners(static_cast<size_t>(ranges.members()));
  for (size_t position = 0; position < indices.size(); ++position) {
    const uint64_t row = indices[position];
    owners[static_cast<size_t>(ranges.ownerOf(row))].push_back({ranges.offsetOf(row), position});
  }
  const auto isBefore = [](const OwnedRow& a, const OwnedRow& b) { return a.offset < b.offset; };
  for (std::vector<OwnedRow>& rows : owners)
    if (!std::is_sorted(rows.begin(), rows.end(), isBefore)) std::stable_sort(rows.begin(), rows.end(), isBefore);
  return owners;
}

template <class Half, class F>
void forWide(std::byte* sums, const std::byte* values, size_t count, F f) {
  float* const to = reinterpret_cast<float*>(sums);
  const Half* const from = reinterpret_cast<const Half*>(values);
  for (size_t i = 0; i < count; ++i) f(to[i], toFloat(from[i]));
}

// sums[i] = values[i]; the sums are in the sum type of `type`.
void copyElements(DataType type, std::byte* sums, const std::byte* values, size_t count) {
  const auto set = [](float& sum, float value) { sum = value; };
  if (type == DataType::kFloat16) return forWide<Float16>(sums, values, count, set);
  if (type == DataType::kBFloat16) return forWide<BFloat16>(sums, values, count, set);
  if (count > 0) std::memcpy(sums, values, count * sizeOf(type));
}

// sums[i] += values[i]
void addElements(DataType type, std::byte* sums, const std::byte* values, size_t count) {
  const auto add = [](float& sum, float value) { sum += value; };
  if (type == DataType::kFloat16) return forWide<Float16>(sums, values, count, add);
  if (type == DataType::kBFloat16) return forWide<BFloat16>(sums, values, count, add);
  reduceInto(type, ReduceOp::kSum, sums, values, count);
}

// Writes one block of a member's rows.
class Packing {
 public:
  Packing(Bytes values, const RowType& type) : values_(values), type_(type) {}

  RowBlock pack(std::span<const OwnedRow> rows, uint64_t range) const {
    RowBlock block{type_.sumLayout(range, unique(rows)), {}};
    block.allocate();
    RowWriter writer(block);
    for (size_t next = 0; next < rows.size();) {
      const size_t count = together(rows.subspan(next));
      const uint64_t offset = rows[next].offset;
      std::byte* const sums = writer.add(offset, offset + count);
      copyElements(type_.type, sums, at(rows[next].position), count * type_.width);
      std::byte* const last = sums + (count - 1) * block.layout.rowBytes;
      for (next += count; next < rows.size() && rows[next].offset == rows[next - 1].offset; ++next)
        addElements(type_.type, last, at(rows[next].position), type_.width);
    }
    return block;
  }

 private:
  static uint64_t unique(std::span<const OwnedRow> rows) {
    uint64_t count = 0;
    for (size_t i = 0; i < rows.size(); ++i) count += i == 0 || rows[i].offset != rows[i - 1].offset ? 1 : 0;
    return count;
  }

  // How many of the first rows have consecutive offsets and follow each other in the input too.
  static size_t together(std::span<const OwnedRow> rows) {
    size_t count = 1;
    while (count < rows.size() && rows[count].offset == rows[0].offset + count &&
           rows[count].position == rows[0].position + count)
      ++count;
    return count;
  }

  const std::byte* at(uint64_t position) const { return values_.data() + position * type_.width * sizeOf(type_.type); }

  const Bytes values_;
  const RowType type_;
};

// Calls f(begin, end, present) for the rows of all blocks, upwards: [begin, end) are consecutive rows that the same
// blocks have, and `present` the places of their elements there, by rank.
template <class F>
void forRunsOf(std::span<const RowBlock> blocks, F f) {
  std::vector<RowRuns> all(blocks.begin(), blocks.end());
  std::vector<const std::byte*> present;
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  for (;;) {
    uint64_t begin = kNone, end = kNone;
    for (const RowRuns& runs : all)
      if (!runs.done()) begin = std::min(begin, runs.begin());
    if (begin == kNone) return;
    present.clear();
    for (const RowRuns& runs : all) {
      if (runs.done()) continue;
      const bool isHere = runs.begin() == begin;
      end = std::min(end, isHere ? runs.end() : runs.begin());
      if (isHere) present.push_back(runs.values());
    }
    f(begin, end, present);
    for (RowRuns& runs : all)
      if (!runs.done() && runs.begin() == begin) runs.skip(end - begin);
  }
}

// Adds the float32 values of all in double, and rounds each sum once to Half: the result of a dense all-reduce, where
// each member has a row once.
template <class Half>
void sumRounded(std::span<const std::byte* const> present, size_t count, double by, std::byte* result) {
  std::array<double, 512> sums;
  Half* const to = reinterpret_cast<Half*>(result);
  for (size_t first = 0; first < count; first += sums.size()) {
    const size_t size = std::min(count - first, sums.size());
    const auto valuesOf = [&](const std::byte* member) { return reinterpret_cast<const float*>(member) + first; };
    std::copy_n(valuesOf(present.front()), size, sums.data());
    for (const std::byte* member : present.subspan(1))
      for (size_t i = 0; i < size; ++i) sums[i] += double{valuesOf(member)[i]};
    for (size_t i = 0; i < size; ++i) to[first + i] = rounded<Half>(sums[i] / by);
  }
}

// The elements of rows that are `present` in some blocks; `by`: what an average is divided by.
void sumElements(const RowType& type, std::span<const std::byte* const> present, size_t count, int by,
                 std::byte* result) {
  if (type.type == DataType::kFloat16) return sumRounded<Float16>(present, count, by, result);
  if (type.type == DataType::kBFloat16) return sumRounded<BFloat16>(present, count, by, result);
  reduceMembers(type.type, ReduceOp::kSum, present, count, result);
  if (by > 1) divide(type.type, result, count, by);
}

}  // namespace

DataType RowType::sumType() const {
  return type == DataType::kFloat16 || type == DataType::kBFloat16 ? DataType::kFloat32 : type;
}

RowLayout RowType::layout(uint64_t range, uint64_t rows) const { return {range, rows, width * sizeOf(type)}; }

RowLayout RowType::sumLayout(uint64_t range, uint64_t rows) const { return {range, rows, width * sizeOf(sumType())}; }

std::vector<RowBlock> packRows(std::span<const uint64_t> indices, Bytes values, const RowType& type,
                               const RowRanges& ranges) {
  const std::vector<std::vector<OwnedRow>> owners = rowsByOwner(indices, ranges);
  const Packing packing(values, type);
  std::vector<RowBlock> blocks;
  for (int member = 0; member < ranges.members(); ++member)
    blocks.push_back(packing.pack(owners[static_cast<size_t>(member)], ranges.count(member)));
  return blocks;
}

RowBlock sumRows(std::span<const RowBlock> blocks, const RowType& type, int by) {
  uint64_t rows = 0;
  forRunsOf(blocks, [&](uint64_t begin, uint64_t end, const auto&) { rows += end - begin; });
  RowBlock sums{type.layout(blocks.front().layout.range, rows), {}};
  sums.allocate();
  RowWriter writer(sums);
  forRunsOf(blocks, [&](uint64_t begin, uint64_t end, const auto& present) {
    sumElements(type, present, (end - begin) * type.width, by, writer.add(begin, end));
  });
  return sums;
}

}  // namespace treadle::group

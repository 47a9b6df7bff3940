#include "treadle/core/group/sparse.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <queue>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/core/group/group_core.h"
#include "treadle/core/group/sparse_operation.h"

namespace treadle::group {
namespace {

constexpr size_t kMostDimensions = 64;
constexpr uint64_t kMostElements = uint64_t{1} << 59;  // so that their bytes can be counted too

uint64_t productOf(std::span<const uint64_t> sizes) {
  uint64_t product = 1;
  for (uint64_t size : sizes) product *= size;
  return product;
}

// Sizes of 0 do not count: rows without elements are counted too.
bool canBeCounted(std::span<const uint64_t> sizes) {
  uint64_t product = 1;
  for (uint64_t size : sizes)
    if (size > 0 && (__builtin_mul_overflow(product, size, &product) || product >= kMostElements)) return false;
  return true;
}

Status checkRows(const SparseShape& shape, std::span<const uint64_t> indices, Bytes values, DataType type) {
  TREADLE_RETURN_IF_ERROR(shape.validate());
  const uint64_t rows = shape.rows();
  const auto outside = std::find_if(indices.begin(), indices.end(), [&](uint64_t index) { return index >= rows; });
  if (outside != indices.end())
    return invalidArgument("row " + std::to_string(*outside) + " is not in " + shape.text() + ", which has " +
                           std::to_string(rows) + " rows");
  const uint64_t rowBytes = shape.width() * sizeOf(type);
  const bool fits =
      rowBytes == 0 ? values.empty() : values.size() % rowBytes == 0 && values.size() / rowBytes == indices.size();
  if (!fits)
    return invalidArgument("the values have " + std::to_string(values.size()) + " bytes, which are not " +
                           std::to_string(indices.size()) + " rows of " + shape.text());
  return {};
}

// All rows in one range; none where they are not small.
std::optional<RowBlock> wholeOf(const SparseData& data, uint64_t smallBytes) {
  const RowSums rows(data.ranges, data.own);
  const RowLayout layout = data.type.sumLayout(data.ranges.rows(), rows.rows());
  if (layout.sizeBytes() > smallBytes) return {};
  std::vector<uint64_t> indices(layout.count);
  std::vector<std::byte> values(layout.count * layout.rowBytes);
  rows.copyTo(indices, values);
  return packRows(indices, values, data.type.ofSums(), RowRanges(data.ranges.rows(), 1)).front();
}

Status checkSums(DataType type, ReduceOp op) {
  if (op == ReduceOp::kSum || op == ReduceOp::kAverage) return checkReduces(type, op);
  return invalidArgument("a sparse all-reduce has no " + std::string(nameOf(op)) +
                         ", because rows that a member does not have count as zeros; it has sum and average");
}

}  // namespace

Status SparseShape::validate() const {
  if (sizes.size() > kMostDimensions || sparseDims > sizes.size())
    return invalidArgument(
        "sparse data has at most 64 dimensions, and at most as many sparse ones as dimensions; this has " +
        std::to_string(sizes.size()) + " dimensions, " + std::to_string(sparseDims) + " of them sparse");
  if (!canBeCounted(sizes))
    return invalidArgument("sparse data in " + text() + " has more elements than can be counted");
  return {};
}

uint64_t SparseShape::rows() const { return productOf(std::span(sizes).first(sparseDims)); }

uint64_t SparseShape::width() const { return productOf(std::span(sizes).subspan(sparseDims)); }

std::string SparseShape::text() const {
  std::string text;
  for (uint64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "[" + text + "] with " + std::to_string(sparseDims) + " sparse dimension" + (sparseDims == 1 ? "" : "s");
}

uint64_t RowSums::rows() const {
  uint64_t rows = 0;
  for (const RowBlock& block : blocks_) rows += block.layout.count;
  return rows;
}

// Merges the ranges of the members: each has its next row in the queue.
void RowSums::copyTo(std::span<uint64_t> indices, MutableBytes values) const {
  std::vector<RowRuns> ranges(blocks_.begin(), blocks_.end());
  using Next = std::pair<uint64_t, size_t>;  // a row, and its owner
  std::priority_queue<Next, std::vector<Next>, std::greater<Next>> queue;
  const auto enqueue = [&](size_t owner) {
    const RowRuns& next = ranges[owner];
    if (!next.done()) queue.emplace(ranges_.rowAt(static_cast<int>(owner), next.begin()), owner);
  };
  for (size_t owner = 0; owner < ranges.size(); ++owner) enqueue(owner);
  auto index = indices.begin();
  while (!queue.empty()) {
    const auto [row, owner] = queue.top();
    queue.pop();
    RowRuns& next = ranges[owner];
    // Up to the next row of another owner.
    const uint64_t count = std::min(next.end() - next.begin(), ranges_.runRows() - next.begin() % ranges_.runRows());
    for (uint64_t i = 0; i < count; ++i) *index++ = row + i;
    const uint64_t bytes = count * blocks_[owner].layout.rowBytes;
    if (bytes > 0) std::memcpy(values.data(), next.values(), bytes);
    values = values.subspan(bytes);
    next.skip(count);
    enqueue(owner);
  }
}

Future<void> sparseAllReduce(const ProcessGroup& group, const SparseShape& shape, std::span<const uint64_t> indices,
                             Bytes values, DataType type, RowSums& sums, ReduceOp op) {
  throwIfError(checkSums(type, op));
  throwIfError(checkRows(shape, indices, values, type));
  Call call{{OperationKind::kSparseAllReduce, type, op}, {}, {}};
  call.description.count = shape.rows() * shape.width();
  call.description.shape = shape.text();
  const RowRanges ranges(shape.rows(), group.size());
  const RowType rowType{shape.width(), type};
  // Before the work of packing.
  const bool isAlongTree = group.size() > 1 && valueOrThrow(group.algorithmFor(call.description)) == Algorithm::kTree;
  SparseData data{rowType, ranges, packRows(indices, values, rowType, ranges), {}, sums};
  if (isAlongTree) data.whole = wholeOf(data, group.options().smallBytes);
  if (group.size() == 1) sums = RowSums(ranges, {sumRows(data.own, rowType)});
  call.sparse = std::make_shared<SparseData>(std::move(data));
  return group.start(std::move(call));
}

}  // namespace treadle::group

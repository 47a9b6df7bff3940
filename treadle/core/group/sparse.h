#pragma once
// The sum of sparse data over all members: each has rows of a larger whole, named by their indices. For rooms above,
// which know sparse tensors. The rules of group.h hold.

#include "treadle/core/group/group.h"
#include "treadle/core/group/row_block.h"
#include "treadle/core/group/row_ranges.h"

namespace treadle::group {

// The dense data that sparse data stands for. The first `sparseDims` dimensions are rows, the others the elements of
// one row.
struct SparseShape {
  std::vector<uint64_t> sizes;
  size_t sparseDims = 1;

  // InvalidArgument: more than 64 dimensions, more sparse ones than there are, or more elements than can be counted:
  // the sizes but those of 0 multiply to 2^59 or more.
  Status validate() const;
  uint64_t rows() const;
  uint64_t width() const;    // elements of a row
  std::string text() const;  // "[4, 3] with 1 sparse dimension"
};

// The rows that any member has, by index upwards, each once.
class RowSums {
 public:
  RowSums() = default;
  // A block for the range of each member.
  RowSums(RowRanges ranges, std::vector<RowBlock> blocks) : ranges_(ranges), blocks_(std::move(blocks)) {}

  uint64_t rows() const;
  // `indices` takes as many as there are rows, `values` the bytes of their elements.
  void copyTo(std::span<uint64_t> indices, MutableBytes values) const;

 private:
  RowRanges ranges_{0, 1};
  std::vector<RowBlock> blocks_;
};

// `sums` become the rows of all members: a row that several have is their sum, or their average over all members of the
// group (one without the row counts as zeros). With the same bits on all members. Rows are added in the order of ranks
// among up to 16 members, and in any group with SumOrder::kRank.
//
// `indices` are those of this member's rows, row-major over the sparse dimensions, in any order, below shape.rows();
// `values`, aligned for the type, have shape.width() elements for each. Both are read before this returns; `sums`
// belongs to the operation until it has ended. A member first adds its rows with the same index, 16-bit floats in
// float32. Then the rows of all members are added, and the sum is rounded once.
//
// Among more than 16 members small rows go up and down a tree, at most log2 n messages each of at most
// GroupOptions::smallBytes (sparse_tree_operation.h); 16-bit floats are added in float32 then, and overflow where that
// does. Otherwise the rows are dealt to the members, and 16-bit floats added in double:
//
// Let this member have k rows, the union K rows, and the group n members. If the rows are spread evenly over the ranges
// (RowRanges), this member sends (n-1)/n (k + K) rows, in 2 (n-1) messages and the chunks of large blocks. At worst all
// rows lie in the range of one member, which then sends (n-1) K rows. The indices take 64 bits for each row, or a bit
// for each row of the shape if that is less. So dense data costs that bit and what a dense all-reduce does
// (directAllReduce). 16-bit floats take 32 bits on their way to the member that adds them; dense ones cost half as
// much again.
//
// The memory of this member, in bytes of rows: the k own ones, those that others have in its range, and the K sums, and
// up to 40 bytes a row while the call sorts them. No sum begins before all rows of the range have come.
//
// Members give the same shape, type and reduction. ArgumentError at once: a reduction other than kSum and kAverage,
// values of another size, an index outside of the shape, 2^59 elements or more, and a forced algorithm other than
// kAutomatic, kDirect and, among more than 16 members, kTree. Throws std::bad_alloc when there is no memory for the own
// rows.
Future<void> sparseAllReduce(const ProcessGroup& group, const SparseShape& shape, std::span<const uint64_t> indices,
                             Bytes values, DataType type, RowSums& sums, ReduceOp op = ReduceOp::kSum);

}  // namespace treadle::group

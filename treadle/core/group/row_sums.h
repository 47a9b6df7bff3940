#pragma once
// The arithmetic of a sparse all-reduce: the rows of one member in a block for each range, and the sum of the blocks of
// all members of one range. Pure functions; any thread. Both throw std::bad_alloc.

#include <span>
#include <vector>

#include "treadle/core/group/data_type.h"
#include "treadle/core/group/row_block.h"
#include "treadle/core/group/row_ranges.h"

namespace treadle::group {

struct RowType {
  uint64_t width = 0;  // elements of a row
  DataType type = DataType::kFloat32;

  // The type of sums within a member: float32 for 16-bit floats, else the type itself. Rows travel in it to the member
  // that adds them.
  DataType sumType() const;
  RowType ofSums() const { return {width, sumType()}; }
  RowLayout layout(uint64_t range, uint64_t rows) const;     // in the type
  RowLayout sumLayout(uint64_t range, uint64_t rows) const;  // in the sum type
};

// The rows of one member, a block for the range of each member, in the sum type. `indices` name the rows in any order,
// each below the rows of the ranges; `values` are their elements, in the type. Rows with the same index are added in
// the order in which they stand.
std::vector<RowBlock> packRows(std::span<const uint64_t> indices, Bytes values, const RowType& type,
                               const RowRanges& ranges);

// The union of the rows of all members in one range, in the type. The blocks are valid, in the sum type and of one
// range, by rank. Rows with the same offset are added by rank, those of 16-bit floats in double, and divided by `by`.
// The result of 16-bit floats is rounded once.
RowBlock sumRows(std::span<const RowBlock> blocks, const RowType& type, int by = 1);

}  // namespace treadle::group

#pragma once
// All members of a group call the operation of a cell, and get what it promises.

#include "tests/core/group/cell.h"
#include "tests/core/group/group_job.h"

namespace treadle::test {

inline void runCell(const Cell& cell, const std::vector<ProcessGroup>& groups) {
  std::vector<CellData> data;
  std::vector<Future<void>> futures;
  for (int rank = 0; rank < cell.size; ++rank) data.push_back(cell.dataOf(rank));
  for (int rank = 0; rank < cell.size; ++rank)
    if (const auto self = static_cast<size_t>(rank); cell.takesPart(rank))
      futures.push_back(cell.start(groups[self], data[self]));
  waitAll(futures);
  for (int rank = 0; rank < cell.size; ++rank)
    if (const CellData& mine = data[static_cast<size_t>(rank)]; cell.takesPart(rank)) {
      EXPECT_TRUE(mine.output == mine.wanted) << cell.name() << ", rank " << rank;
    }
}

}  // namespace treadle::test

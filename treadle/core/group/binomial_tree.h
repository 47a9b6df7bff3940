#pragma once
// A binomial tree over the ranks of a group, with rank 0 as root. The parent of a rank is the rank without its lowest
// set bit; at the child `c` hang the ranks [c, c + lowest set bit of c) that the group has. So a rank has at most log2
// n children (rounded up), and the path to the root is no longer. Pure functions.

#include <vector>

namespace treadle::group {

// -1: the root has none.
inline int parentOf(int rank) { return rank == 0 ? -1 : rank & (rank - 1); }

// The ranks [rank, endOf) hang at this one, itself included.
inline int endOf(int rank, int size) {
  const int lowestBit = rank & -rank;
  return rank == 0 || rank + lowestBit > size ? size : rank + lowestBit;
}

// In rising order, which is that of the ranks that hang at them.
inline std::vector<int> childrenOf(int rank, int size) {
  std::vector<int> children;
  for (int bit = 1; rank + bit < endOf(rank, size); bit *= 2) children.push_back(rank + bit);
  return children;
}

}  // namespace treadle::group

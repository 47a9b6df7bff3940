#pragma once
// Rows of members for sparse all-reduces, small whole numbers, and their sum as dense data.

#include <set>

#include "tests/core/group/group_job.h"
#include "treadle/core/group/sparse.h"

namespace treadle::test {

// One member: its rows, and the sums that it gets.
template <class T>
struct SparseMember {
  std::vector<uint64_t> indices;
  std::vector<T> values;
  group::RowSums sums;

  Future<void> start(const ProcessGroup& group, const group::SparseShape& shape, ReduceOp op = ReduceOp::kSum) {
    return sparseAllReduce(group, shape, indices, std::as_bytes(std::span(values)), group::DataTypeOf<T>::kValue, sums,
                           op);
  }
  void add(uint64_t index, uint64_t width, T value) {
    indices.push_back(index);
    for (uint64_t i = 0; i < width; ++i) values.push_back(static_cast<T>(value + static_cast<T>(i)));
  }

  std::vector<uint64_t> sumIndices(uint64_t width) const { return copySums(width).first; }
  std::vector<T> sumValues(uint64_t width) const { return copySums(width).second; }

 private:
  std::pair<std::vector<uint64_t>, std::vector<T>> copySums(uint64_t width) const {
    std::pair<std::vector<uint64_t>, std::vector<T>> all(sums.rows(), sums.rows() * width);
    sums.copyTo(all.first, std::as_writable_bytes(std::span(all.second)));
    return all;
  }
};

template <class T>
using SparseMembers = std::vector<SparseMember<T>>;

// All of them start; waits until all have ended well.
template <class T>
void sumOfAll(const std::vector<ProcessGroup>& groups, const group::SparseShape& shape, SparseMembers<T>& members,
              ReduceOp op = ReduceOp::kSum) {
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < groups.size(); ++rank) futures.push_back(members[rank].start(groups[rank], shape, op));
  waitAll(futures);
}

// `one` of them has the rows that any has, and of each the sum of all.
template <class T>
void expectSumsOf(const SparseMember<T>& one, const group::SparseShape& shape, const SparseMembers<T>& members,
                  int divisor = 1) {
  const uint64_t width = shape.width();
  std::vector<T> dense(shape.rows() * width);
  std::set<uint64_t> rows;
  for (const SparseMember<T>& member : members)
    for (size_t i = 0; i < member.indices.size(); ++i) {
      rows.insert(member.indices[i]);
      for (size_t j = 0; j < width; ++j) dense[member.indices[i] * width + j] += member.values[i * width + j];
    }
  std::vector<T> expected;
  for (uint64_t row : rows)
    for (uint64_t j = 0; j < width; ++j) expected.push_back(dense[row * width + j] / static_cast<T>(divisor));
  ASSERT_EQ(one.sumIndices(width), std::vector<uint64_t>(rows.begin(), rows.end()));
  ASSERT_EQ(one.sumValues(width), expected);
}

// All of them.
template <class T>
void expectSums(const group::SparseShape& shape, const SparseMembers<T>& members, int divisor = 1) {
  for (const SparseMember<T>& member : members) expectSumsOf(member, shape, members, divisor);
}

}  // namespace treadle::test

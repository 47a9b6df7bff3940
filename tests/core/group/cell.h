#pragma once
// One operation by one algorithm among so many members: how each member calls it, on data whose result is known, and
// the plans that the members execute. The table of all of them, but for the sparse all-reduce, whose plan depends on
// its data (sparse_failure_test.cc). Pure values, but for `start`.

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/core/group/simulation.h"
#include "treadle/core/group/binomial_tree.h"
#include "treadle/core/group/choice.h"
#include "treadle/core/group/direct.h"
#include "treadle/core/group/group.h"

namespace treadle::test {

using Values = std::vector<int32_t>;

// The memory of one member, and its output once the operation has ended well.
struct CellData {
  Values input, output, wanted;
};

struct Cell {
  group::OperationKind operation = group::OperationKind::kBarrier;
  group::Algorithm algorithm = group::Algorithm::kAutomatic;
  int size = 2;      // members of the group
  int hosts = 1;     // on which they are, as many on each
  int root = 0;      // the sender of a send
  int receiver = 1;  // of a send
  size_t count = 0;  // elements of 4 bytes: of each block where each member has one, else of the whole
  size_t chunkBytes = 64;
  group::DataType dataType = group::DataType::kInt32;  // of reductions; the others copy bytes
  ReduceOp reduceOp = ReduceOp::kSum;
  std::string shape = {};  // as in Description

  bool isSend() const { return operation == group::OperationKind::kSend; }
  bool isBarrier() const { return operation == group::OperationKind::kBarrier; }
  bool takesPart(int rank) const { return !isSend() || rank == root || rank == receiver; }
  bool hasRoot() const {
    using enum group::OperationKind;
    return operation == kBroadcast || operation == kReduce || operation == kGather || operation == kScatter;
  }
  bool reduces() const {
    using enum group::OperationKind;
    return operation == kAllReduce || operation == kReduce || operation == kReduceScatter;
  }
  bool hasBlocks() const {
    using enum group::OperationKind;
    return operation == kReduceScatter || operation == kAllGather || operation == kGather || operation == kScatter ||
           operation == kAllToAll || operation == kAllToAllV;
  }
  // Its data travels with the starts, or it has none.
  bool small() const { return algorithm == group::Algorithm::kExchange || algorithm == group::Algorithm::kTree; }
  // Starts go along the tree.
  bool inTree() const { return !isSend() && group::agreementOf(description(), size) == group::Agreement::Kind::kTree; }

  GroupOptions options(std::string name) const {
    return {.name = std::move(name),
            .smallBytes = small() ? GroupOptions{}.smallBytes : 0,
            .chunkBytes = chunkBytes,
            .algorithm = algorithm};
  }

  // As members call it and send it to each other.
  group::Description description() const {
    group::Description what;
    what.operation = operation;
    what.dataType = reduces() ? dataType : group::DataType::kUint8;
    if (reduces()) what.reduceOp = reduceOp;
    if (hasRoot()) what.root = static_cast<uint32_t>(root);
    if (!isBarrier() && !what.sizesVary()) what.count = count * unit() * (hasBlocks() ? static_cast<size_t>(size) : 1);
    what.smallBytes = options({}).smallBytes;
    what.chunkBytes = chunkBytes;
    what.algorithm = algorithm;
    what.shape = shape;
    return what;
  }
  // "broadcast from the group's rank 1 of 336 uint8 by ring"; of a send what the sender calls.
  std::string name() const { return group::describe(description()) + " by " + std::string(nameOf(algorithm)); }
  // As the member calls it: "recv of 336 bytes".
  std::string calledBy(int rank) const { return group::describe(description(), isSend() && rank != root ? 1 : 0); }

  // A send is planned as a group of two.
  group::Placement placement() const {
    const group::Placement all = group::Placement::spread(size, hosts);
    return isSend() ? all.pair(root, receiver) : all;
  }
  bool isServed() const {
    return operation != group::OperationKind::kSparseAllReduce && group::serves(algorithm, description(), placement());
  }

  // The plan of one member.
  group::Plan planOf(int rank) const {
    const std::vector<uint64_t> blocks(hasBlocks() ? static_cast<size_t>(size) : 0, count * unit());
    const group::Call call{description(), {}, {}, blocks, blocks};
    return group::planOf(call, placement(), !isSend() ? rank : rank == root ? 0 : 1);
  }
  // The member with that rank in the plans.
  int memberOf(int planRank) const { return !isSend() ? planRank : planRank == 0 ? root : receiver; }
  uint64_t chunkElements() const { return small() ? UINT64_MAX : chunkBytes * unit() / 4; }

  CellData dataOf(int rank) const;
  Future<void> start(const ProcessGroup& withoutShape, CellData& data) const;

 private:
  // Elements of the plan for each of `count`.
  size_t unit() const { return reduces() ? 1 : 4; }
};

// ---- data by definition

inline int32_t cellValue(int rank, size_t i) { return (rank + 1) * 1000 + static_cast<int32_t>(i % 89); }

inline Values cellValues(int rank, size_t first, size_t count) {
  Values values(count);
  for (size_t i = 0; i < count; ++i) values[i] = cellValue(rank, first + i);
  return values;
}

inline Values cellSums(int size, size_t first, size_t count) {
  Values sums(count);
  for (size_t i = 0; i < count; ++i)
    sums[i] = 1000 * size * (size + 1) / 2 + size * static_cast<int32_t>((first + i) % 89);
  return sums;
}

inline CellData Cell::dataOf(int rank) const {
  const auto members = static_cast<size_t>(size), self = static_cast<size_t>(rank);
  const bool isRoot = rank == root;
  const size_t allCount = count * members;
  const auto all = [&](int of) { return cellValues(of, 0, allCount); };
  Values joined;  // block `from` of what `of(from)` has
  const auto join = [&](auto block) {
    for (int from = 0; from < size; ++from) {
      const Values values = block(from);
      joined.insert(joined.end(), values.begin(), values.end());
    }
    return joined;
  };
  switch (operation) {
    case group::OperationKind::kAllReduce: return {{}, cellValues(rank, 0, count), cellSums(size, 0, count)};
    case group::OperationKind::kBroadcast:
      return {{}, isRoot ? cellValues(root, 0, count) : Values(count), cellValues(root, 0, count)};
    case group::OperationKind::kBarrier: return {};
    case group::OperationKind::kReduce:
      if (!isRoot) return {cellValues(rank, 0, count), {}, {}};
      return {cellValues(rank, 0, count), Values(count), cellSums(size, 0, count)};
    case group::OperationKind::kReduceScatter: return {all(rank), Values(count), cellSums(size, self * count, count)};
    case group::OperationKind::kAllGather:
      return {cellValues(rank, 0, count), Values(allCount), join([&](int from) { return cellValues(from, 0, count); })};
    case group::OperationKind::kGather:
      if (!isRoot) return {cellValues(rank, 0, count), {}, {}};
      return {cellValues(rank, 0, count), Values(allCount), join([&](int from) { return cellValues(from, 0, count); })};
    case group::OperationKind::kScatter:
      return {isRoot ? all(root) : Values(), Values(count), cellValues(root, self * count, count)};
    case group::OperationKind::kAllToAll:
    case group::OperationKind::kAllToAllV:
      return {all(rank), Values(allCount), join([&](int from) { return cellValues(from, self * count, count); })};
    case group::OperationKind::kSend:
      if (isRoot) return {cellValues(root, 0, count), {}, {}};
      return {{}, Values(count), cellValues(root, 0, count)};
    case group::OperationKind::kSparseAllReduce: break;
  }
  return {};
}

inline Future<void> Cell::start(const ProcessGroup& withoutShape, CellData& data) const {
  const ProcessGroup group = withoutShape.withShape(shape);
  const Bytes input = std::as_bytes(std::span(data.input));
  const MutableBytes output = std::as_writable_bytes(std::span(data.output));
  switch (operation) {
    case group::OperationKind::kAllReduce: return allReduce(group, data.output.data(), count, dataType, reduceOp);
    case group::OperationKind::kBroadcast: return broadcast(group, output, root);
    case group::OperationKind::kBarrier:
    case group::OperationKind::kSparseAllReduce: break;
    case group::OperationKind::kReduce: return reduce(group, input, output, dataType, root, reduceOp);
    case group::OperationKind::kReduceScatter: return reduceScatter(group, input, output, dataType, reduceOp);
    case group::OperationKind::kAllGather: return allGather(group, input, output);
    case group::OperationKind::kGather: return gather(group, input, output, root);
    case group::OperationKind::kScatter: return scatter(group, input, output, root);
    case group::OperationKind::kAllToAll: return allToAll(group, input, output);
    case group::OperationKind::kAllToAllV: {
      const std::vector<uint64_t> sizes(static_cast<size_t>(size), count * sizeof(int32_t));
      return allToAll(group, input, output, sizes, sizes);
    }
    case group::OperationKind::kSend:
      return group.rank() == root ? send(group, input, receiver) : recv(group, output, root);
  }
  return barrier(group);
}

// ---- the table

// The group, its victim, and how many messages with data the victim gets before it stops: 1, 2, ... `most`.
struct Setting {
  int size = 3;
  int victim = 0;
  int most = 1;
  size_t chunkBytes = 64;
  size_t rest = 3;  // elements beyond whole chunks
  int hosts = 1;
};

// Large enough that no member can finish before the victim stops: two windows, and half a window per acknowledgement
// that the victim still gets.
inline size_t countFor(const Cell& cell, const Setting& setting) {
  const size_t smallCount = 100;
  if (cell.isBarrier()) return 0;
  if (cell.small()) return smallCount;
  const bool direct = cell.algorithm == group::Algorithm::kDirect;
  const bool receivesFromAll = direct || cell.algorithm == group::Algorithm::kRoot;
  const size_t window = receivesFromAll ? group::directWindow(setting.size) : 8;
  const size_t chunks = 2 * window + std::max<size_t>(1, window / 2) * static_cast<size_t>(setting.most) + 1;
  const bool isCut = direct || cell.algorithm == group::Algorithm::kHierarchical;
  const size_t blocks = isCut && !cell.hasBlocks() ? static_cast<size_t>(setting.size) : 1;
  return blocks * chunks * (cell.chunkBytes / 4) + setting.rest;
}

// Every operation by every algorithm that can do it in the group, which has at least two members. Operations with a
// root and sends are there twice: the victim is the root, or the next member is. A ring's broadcast is there a third
// time: after the root before it, the victim is the member that receives and sends.
inline std::vector<Cell> cellsOf(const Setting& setting) {
  std::vector<Cell> cells;
  const int next = (setting.victim + 1) % setting.size;
  const int previous = (setting.victim + setting.size - 1) % setting.size;
  for (uint8_t operation = 1; group::isOperation(operation); ++operation)
    for (uint8_t algorithm = 1; group::isAlgorithm(algorithm); ++algorithm)
      for (int root : std::set<int>{setting.victim, next, previous}) {
        Cell cell{.operation = static_cast<group::OperationKind>(operation),
                  .algorithm = static_cast<group::Algorithm>(algorithm),
                  .size = setting.size,
                  .hosts = setting.hosts,
                  .root = root,
                  .receiver = root == next ? setting.victim : next,
                  .chunkBytes = setting.chunkBytes};
        cell.count = countFor(cell, setting);
        const bool isNext = root == next && (cell.hasRoot() || cell.isSend());
        const bool inRing = cell.algorithm == group::Algorithm::kRing && cell.hasRoot();
        if ((root == setting.victim || isNext || inRing) && cell.isServed()) cells.push_back(cell);
      }
  return cells;
}

}  // namespace treadle::test

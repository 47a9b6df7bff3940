// Reductions by every algorithm against their definition, computed in one process: 1 to 9 members of one host, members
// of several hosts, and 17, whose small data goes along a tree; every type and reduction; no elements, one, a prime
// number of them, and many.

#include "tests/core/group/reductions.h"

#include <deque>
#include <optional>

#include "tests/core/group/group_job.h"

namespace treadle::reductions_test {
namespace {

using group::OperationKind;
using test::GroupJob;
using test::Memory;
using test::Reduction;

constexpr Algorithm kAlgorithms[] = {Algorithm::kExchange,    Algorithm::kTree,      Algorithm::kRoot,
                                     Algorithm::kRing,        Algorithm::kCirculant, Algorithm::kDirect,
                                     Algorithm::kHierarchical};

// Operations that all members have called, and what these must give.
class Calls {
 public:
  explicit Calls(const std::vector<ProcessGroup>& groups) : groups_(groups) {}

  // Each of the first `count` elements of the data.
  void allReduceOf(const Reduction& what, size_t count) {
    for (size_t rank = 0; rank < groups_.size(); ++rank) {
      const Bytes input = what.first(what.inputs[rank], count);
      Memory& data = expect("allReduce", what, count, rank, what.first(what.wanted, count));
      std::copy(input.begin(), input.end(), data.begin());
      futures_.push_back(allReduce(groups_[rank], data.data(), count, what.type, what.op));
    }
  }

  // To another root each time.
  void reduceOf(const Reduction& what, size_t count) {
    const size_t root = reduces_++ % groups_.size();
    for (size_t rank = 0; rank < groups_.size(); ++rank) {
      const Bytes wanted = rank == root ? what.first(what.wanted, count) : Bytes();
      Memory& output = expect("reduce", what, count, rank, wanted);
      futures_.push_back(reduce(groups_[rank], what.first(what.inputs[rank], count), output, what.type,
                                static_cast<int>(root), what.op));
    }
  }

  // In blocks each of which is larger than the one before.
  void reduceScatterOf(const Reduction& what, size_t count) {
    const size_t members = groups_.size();
    std::vector<uint64_t> counts;
    Bytes wanted = what.first(what.wanted, count);
    for (size_t rank = 0; rank < members; ++rank)
      counts.push_back(count * (rank + 1) * (rank + 1) / (members * members) -
                       count * rank * rank / (members * members));
    for (size_t rank = 0; rank < members; ++rank) {
      const size_t sizeBytes = counts[rank] * group::sizeOf(what.type);
      Memory& output = expect("reduceScatter", what, count, rank, wanted.first(sizeBytes));
      wanted = wanted.subspan(sizeBytes);
      futures_.push_back(
          reduceScatter(groups_[rank], what.first(what.inputs[rank], count), output, what.type, what.op, counts));
    }
  }

  // Waits for all.
  void expectWanted() {
    test::waitAll(futures_);
    for (const Output& output : outputs_) {
      const bool isWanted =
          output.wanted.empty() || std::memcmp(output.memory.data(), output.wanted.data(), output.wanted.size()) == 0;
      ASSERT_TRUE(isWanted) << output.name << ", byte " << output.firstOther();
    }
  }

 private:
  struct Output {
    std::string name;
    Memory memory;
    Bytes wanted;

    ptrdiff_t firstOther() const {
      return std::mismatch(memory.begin(), memory.end(), wanted.begin()).first - memory.begin();
    }
  };

  Memory& expect(const char* operation, const Reduction& what, size_t count, size_t rank, Bytes wanted) {
    outputs_.push_back(
        {operation + (" of " + std::to_string(count)) + " " + what.name() + ", rank " + std::to_string(rank),
         Memory(wanted.size()), wanted});
    return outputs_.back().memory;
  }

  const std::vector<ProcessGroup>& groups_;
  std::deque<Output> outputs_;
  std::vector<Future<void>> futures_;
  size_t reduces_ = 0;
};

// Members, and the hosts on which they are.
class Reductions : public ::testing::TestWithParam<std::tuple<int, int>> {
 protected:
  Reductions() { job_.spreadOver(hosts()); }

  static int members() { return std::get<0>(GetParam()); }
  static int hosts() { return std::get<1>(GetParam()); }

  // Whether the algorithm can do the reduction when its data is small: the table of docs/protocol/group.md. But on
  // several hosts the hierarchical one alone, and above 16 members those whose data goes along a tree: the others do
  // there what they do among few members of one host.
  static bool serves(Algorithm algorithm, OperationKind operation) {
    const bool isAllReduce = operation == OperationKind::kAllReduce;
    const bool isAlongTree = algorithm == Algorithm::kTree || algorithm == Algorithm::kRoot;
    if (hosts() > 1) return algorithm == Algorithm::kHierarchical && isAllReduce;
    if (members() > 16 && !isAlongTree) return false;
    switch (algorithm) {
      case Algorithm::kTree: return members() > 16 && isAllReduce;
      case Algorithm::kRoot: return operation != OperationKind::kReduceScatter;
      case Algorithm::kRing: return isAllReduce;
      case Algorithm::kCirculant: return operation != OperationKind::kReduce;
      case Algorithm::kExchange:
      case Algorithm::kDirect:
      case Algorithm::kAutomatic: return true;
      case Algorithm::kHierarchical: break;
    }
    return false;
  }

  // All that the algorithm does, at once: on the whole data, and for the first reduction of a type on its first
  // elements.
  void check(Algorithm algorithm, const std::vector<Reduction>& all, GroupOptions options,
             const std::vector<size_t>& firstElements = {}) {
    SCOPED_TRACE(group::nameOf(algorithm));
    options.algorithm = algorithm;
    const std::vector<ProcessGroup> groups = job_.makeAll(options);
    Calls calls(groups);
    std::optional<group::DataType> last;
    for (const Reduction& what : all) {
      std::vector<size_t> counts = {what.count()};
      if (last != what.type) counts.insert(counts.end(), firstElements.begin(), firstElements.end());
      last = what.type;
      for (size_t count : counts) {
        if (serves(algorithm, OperationKind::kAllReduce)) calls.allReduceOf(what, count);
        if (serves(algorithm, OperationKind::kReduce)) calls.reduceOf(what, count);
        if (serves(algorithm, OperationKind::kReduceScatter)) calls.reduceScatterOf(what, count);
      }
    }
    calls.expectWanted();
  }

  // Data that does not travel with the starts, in elements of several sizes.
  void checkLarge(size_t sizeBytes, const GroupOptions& options) {
    const std::vector<Reduction> all = {
        test::reductionOf<float>(ReduceOp::kAverage, members(), sizeBytes / sizeof(float)),
        test::reductionOf<int8_t>(ReduceOp::kMax, members(), sizeBytes),
        test::reductionOf<group::Float16>(ReduceOp::kSum, members(), sizeBytes / sizeof(group::Float16)),
        test::reductionOf<std::complex<double>>(ReduceOp::kProduct, members(),
                                                sizeBytes / sizeof(std::complex<double>))};
    for (Algorithm algorithm : kAlgorithms)
      if (algorithm != Algorithm::kExchange && algorithm != Algorithm::kTree) check(algorithm, all, options);
  }

  GroupJob job_{members()};
};

TEST_P(Reductions, OfEveryTypeGiveTheirClosedForms) {
  const std::vector<Reduction> all = test::allReductions(members(), 211);
  ASSERT_EQ(all.size(), 12U * 5 + 2 + 2 * 3) << "bool has no sums, and complex numbers have no order";
  for (Algorithm algorithm : kAlgorithms) check(algorithm, all, {.chunkBytes = 64}, {0, 1});
}

INSTANTIATE_TEST_SUITE_P(Members, Reductions,
                         ::testing::Combine(::testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9, 17), ::testing::Values(1)));
INSTANTIATE_TEST_SUITE_P(Hosts, Reductions,
                         ::testing::Values(std::tuple(4, 2), std::tuple(6, 2), std::tuple(6, 3), std::tuple(8, 2),
                                           std::tuple(8, 4), std::tuple(9, 3)));

using LargeReductions = Reductions;

TEST_P(LargeReductions, InManyChunksGiveTheirClosedForms) { checkLarge(160'036, {.chunkBytes = 1024}); }

// As programs use them: the block of each member has two.
TEST_P(LargeReductions, InTheUsualChunksGiveTheirClosedForms) {
  checkLarge(static_cast<size_t>(members()) * 280'004 + 16, {});
}

// More elements than OfEveryTypeGiveTheirClosedForms of Reductions has, and no data goes with the starts.
TEST_P(LargeReductions, OfEveryTypeGiveTheirClosedForms) {
  const std::vector<Reduction> all = test::allReductions(members(), 1009);
  for (Algorithm algorithm : kAlgorithms)
    if (algorithm != Algorithm::kExchange && algorithm != Algorithm::kTree)
      check(algorithm, all, {.smallBytes = 0, .chunkBytes = 256});
}

INSTANTIATE_TEST_SUITE_P(Members, LargeReductions,
                         ::testing::Combine(::testing::Values(2, 3, 4, 5, 6, 7, 8, 9), ::testing::Values(1)));
INSTANTIATE_TEST_SUITE_P(Hosts, LargeReductions,
                         ::testing::Values(std::tuple(4, 2), std::tuple(8, 2), std::tuple(9, 3)));

// By the algorithms that are chosen.
using ChosenReductions = Reductions;

TEST_P(ChosenReductions, OfAMillionElementsGiveTheirClosedForms) {
  test::forEachNumberType([&]<class T>(T) {
    using enum ReduceOp;
    const bool isBool = std::is_same_v<T, group::Bool>;
    check(Algorithm::kAutomatic, {test::reductionOf<T>(isBool ? kMax : kAverage, members(), 1'000'003)}, {});
  });
}

INSTANTIATE_TEST_SUITE_P(Members, ChosenReductions,
                         ::testing::Combine(::testing::Values(2, 3, 5), ::testing::Values(1)));

// What a member gives that rounds after each of the others.
template <class T>
T roundedAtEachStep(ReduceOp op, const std::vector<T>& values) {
  T result = values.front();
  for (size_t rank = 1; rank < values.size(); ++rank)
    result = test::NumbersOf<T>::reduced(op, std::vector{result, values[rank]});
  return result;
}

// Otherwise the tests above would not show it.
TEST(ReductionNumbers, OfSixteenBitsShowASecondRounding) {
  const auto check = []<class T>(T, ReduceOp op, int members) {
    int others = 0;
    for (size_t i = 0; i < 1000; ++i) {
      std::vector<T> values;
      for (int rank = 0; rank < members; ++rank) values.push_back(test::NumbersOf<T>::of(op, rank, members, i));
      others += roundedAtEachStep(op, values).bits != test::NumbersOf<T>::reduced(op, values).bits ? 1 : 0;
    }
    EXPECT_GT(others, 100) << group::nameOf(group::DataTypeOf<T>::kValue) << " among " << members;
  };
  for (int members = 3; members <= 9; ++members) {
    check(group::Float16(), ReduceOp::kSum, members);
    check(group::BFloat16(), ReduceOp::kSum, members);
    check(group::BFloat16(), ReduceOp::kProduct, members);
    if (members > 3) check(group::Float16(), ReduceOp::kProduct, members);  // the first product needs ten digits
  }
}

}  // namespace
}  // namespace treadle::reductions_test

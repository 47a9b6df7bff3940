// Operations whose data lies in a block for each member: by definition, for equal and unequal blocks, small and large,
// and what happens when members do not agree.

#include <numeric>

#include "tests/core/group/group_job.h"

namespace treadle::blocks_test {
namespace {

using test::contains;
using test::failureOf;
using test::GroupJob;
using test::onAll;
using Sizes = std::vector<uint64_t>;

constexpr size_t kMembers = 4;

std::byte byteOf(size_t rank, size_t i) { return static_cast<std::byte>(rank * 37 + i * 11 + i / 256); }

// What each member gives, and what each shall get; all filled with what shows where it came from.
std::vector<std::byte> bytesOf(size_t rank, size_t first, size_t count) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = byteOf(rank, first + i);
  return bytes;
}

uint64_t sumOf(const Sizes& sizes) { return std::accumulate(sizes.begin(), sizes.end(), uint64_t{0}); }
uint64_t firstOf(const Sizes& sizes, size_t rank) {
  return std::accumulate(sizes.begin(), sizes.begin() + static_cast<ptrdiff_t>(rank), uint64_t{0});
}

void append(std::vector<std::byte>& all, const std::vector<std::byte>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

using Groups = std::vector<ProcessGroup>;

// The input of each member, as large as its block, and all of them one after the other.
struct Inputs {
  explicit Inputs(const Sizes& sizes) {
    for (size_t rank = 0; rank < sizes.size(); ++rank) {
      ofMember.push_back(bytesOf(rank, 0, sizes[rank]));
      append(all, ofMember.back());
    }
  }
  std::vector<std::vector<std::byte>> ofMember;
  std::vector<std::byte> all;
};

void checkAllGather(const Groups& groups, const Sizes& sizes) {
  const Inputs inputs(sizes);
  std::vector<std::vector<std::byte>> outputs(groups.size(), std::vector<std::byte>(sumOf(sizes)));
  onAll(groups, [&](const ProcessGroup& group, size_t rank) {
    return allGather(group, inputs.ofMember[rank], outputs[rank], sizes);
  });
  for (const auto& output : outputs) ASSERT_EQ(output, inputs.all);
}

void checkGather(const Groups& groups, const Sizes& sizes, size_t root) {
  const Inputs inputs(sizes);
  std::vector<std::vector<std::byte>> outputs(groups.size());
  outputs[root].resize(sumOf(sizes));
  onAll(groups, [&](const ProcessGroup& group, size_t rank) {
    return gather(group, inputs.ofMember[rank], outputs[rank], static_cast<int>(root), sizes);
  });
  ASSERT_EQ(outputs[root], inputs.all);
}

void checkScatter(const Groups& groups, const Sizes& sizes, size_t root) {
  std::vector<std::vector<std::byte>> inputs(groups.size()), outputs;
  inputs[root] = bytesOf(root, 0, sumOf(sizes));
  for (uint64_t size : sizes) outputs.emplace_back(size);
  onAll(groups, [&](const ProcessGroup& group, size_t rank) {
    return scatter(group, inputs[rank], outputs[rank], static_cast<int>(root), sizes);
  });
  for (size_t rank = 0; rank < groups.size(); ++rank)
    ASSERT_EQ(outputs[rank], bytesOf(root, firstOf(sizes, rank), sizes[rank]));
}

// Member r sends to member m as many bytes as `sent[r]` gives m.
void checkAllToAll(const Groups& groups, const std::vector<Sizes>& sent) {
  const size_t members = groups.size();
  std::vector<std::vector<std::byte>> inputs, outputs, wants(members);
  std::vector<Sizes> received(members);
  for (size_t rank = 0; rank < members; ++rank) {
    inputs.push_back(bytesOf(rank, 0, sumOf(sent[rank])));
    for (size_t from = 0; from < members; ++from) {
      received[rank].push_back(sent[from][rank]);
      append(wants[rank], bytesOf(from, firstOf(sent[from], rank), sent[from][rank]));
    }
    outputs.emplace_back(sumOf(received[rank]));
  }
  onAll(groups, [&](const ProcessGroup& group, size_t rank) {
    return allToAll(group, inputs[rank], outputs[rank], sent[rank], received[rank]);
  });
  for (size_t rank = 0; rank < members; ++rank) ASSERT_EQ(outputs[rank], wants[rank]) << rank;
}

// With the default options, with everything large and in small chunks.
class Blocks : public ::testing::TestWithParam<bool> {
 protected:
  Blocks() : groups_(GetParam() ? job_.makeAll({.smallBytes = 0, .chunkBytes = 64}) : job_.makeAll()) {}

  GroupJob job_{kMembers};
  Groups groups_;
  const std::vector<Sizes> shapes_ = {{0, 0, 0, 0},   {1, 1, 1, 1},    {100, 100, 100, 100},
                                      {7, 0, 300, 1}, {0, 0, 0, 1000}, {20'000, 3, 0, 70'001}};
};

INSTANTIATE_TEST_SUITE_P(Sizes, Blocks, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "InSmallChunks" : "AsUsual"; });

TEST_P(Blocks, AllGatherBringsAllInputsToAll) {
  for (const Sizes& sizes : shapes_) checkAllGather(groups_, sizes);
}

TEST_P(Blocks, GatherBringsAllInputsToTheRoot) {
  for (const Sizes& sizes : shapes_)
    for (size_t root = 0; root < kMembers; ++root) checkGather(groups_, sizes, root);
}

TEST_P(Blocks, ScatterBringsEachItsBlockOfTheRoots) {
  for (const Sizes& sizes : shapes_)
    for (size_t root = 0; root < kMembers; ++root) checkScatter(groups_, sizes, root);
}

TEST_P(Blocks, AllToAllBringsEachTheBlocksThatAreForIt) {
  for (size_t turn = 0; turn < shapes_.size(); ++turn) {
    SCOPED_TRACE("turn " + std::to_string(turn));
    std::vector<Sizes> sent;
    for (size_t rank = 0; rank < kMembers; ++rank) sent.push_back(shapes_[(rank + turn) % shapes_.size()]);
    checkAllToAll(groups_, sent);
  }
}

// Among so many members, with the default options. Some blocks have several chunks.
class LargeBlocks : public ::testing::TestWithParam<int> {
 protected:
  size_t members() const { return static_cast<size_t>(job_.size()); }
  // Others for each `turn`.
  Sizes sizes(size_t turn = 0) const {
    constexpr uint64_t kSizes[] = {600'001, 0, 300'007, 1};
    Sizes sizes;
    for (size_t rank = 0; rank < members(); ++rank) sizes.push_back(kSizes[(rank + turn) % std::size(kSizes)]);
    return sizes;
  }

  GroupJob job_{GetParam()};
};

INSTANTIATE_TEST_SUITE_P(Members, LargeBlocks, ::testing::Values(1, 2, 3, 4, 5, 6, 7, 8, 9));

TEST_P(LargeBlocks, OfAllAreGathered) {
  for (Algorithm algorithm : {Algorithm::kCirculant, Algorithm::kDirect})
    checkAllGather(job_.makeAll({.algorithm = algorithm}), sizes());
}

TEST_P(LargeBlocks, GoToTheRootAndBack) {
  const Groups groups = job_.makeAll();
  for (size_t root : {size_t{0}, members() - 1}) {
    checkGather(groups, sizes(), root);
    checkScatter(groups, sizes(), root);
  }
}

TEST_P(LargeBlocks, GoFromEachToEach) {
  std::vector<Sizes> sent;
  for (size_t rank = 0; rank < members(); ++rank) sent.push_back(sizes(rank));
  checkAllToAll(job_.makeAll(), sent);
}

TEST_P(Blocks, ReduceScatterReducesEachBlockOnItsMember) {
  for (const Sizes& counts : shapes_) {
    std::vector<std::vector<int32_t>> inputs(kMembers), outputs;
    for (size_t rank = 0; rank < kMembers; ++rank) {
      for (uint64_t i = 0; i < sumOf(counts); ++i) inputs[rank].push_back(static_cast<int32_t>((rank + 1) * (i + 1)));
      outputs.emplace_back(counts[rank]);
    }
    const auto before = inputs;
    onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
      return reduceScatter(group, std::span<const int32_t>(inputs[rank]), std::span(outputs[rank]), ReduceOp::kSum,
                           counts);
    });
    EXPECT_EQ(inputs, before) << "inputs stay as they are";
    for (size_t rank = 0; rank < kMembers; ++rank)
      for (uint64_t i = 0; i < counts[rank]; ++i)
        ASSERT_EQ(outputs[rank][i], static_cast<int32_t>(10 * (firstOf(counts, rank) + i + 1))) << rank << " " << i;
  }
}

TEST_P(Blocks, ReduceBringsTheRootWhatAllReduceBringsAll) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> value(-1, 1);
  for (size_t count : {0, 1, 2, 3, 5, 1003, 20'000})
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct})
      for (size_t root = 0; root < kMembers; ++root) {
        std::vector<std::vector<float>> inputs(kMembers, std::vector<float>(count));
        for (auto& input : inputs)
          for (float& one : input) one = value(random);
        const auto before = inputs;
        std::vector<float> output(count);
        onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
          return reduce(group, std::span<const float>(inputs[rank]), std::span(output).first(rank == root ? count : 0),
                        static_cast<int>(root), op);
        });
        EXPECT_EQ(inputs, before) << "inputs stay as they are";
        for (size_t i = 0; i < count; ++i) {
          float want = inputs[0][i];
          for (size_t rank = 1; rank < kMembers; ++rank) {
            const float other = inputs[rank][i];
            want = op == ReduceOp::kMin       ? std::min(want, other)
                   : op == ReduceOp::kMax     ? std::max(want, other)
                   : op == ReduceOp::kProduct ? want * other
                                              : want + other;
          }
          ASSERT_EQ(output[i], op == ReduceOp::kAverage ? want / kMembers : want) << "in the order of ranks";
        }
      }
}

TEST_P(Blocks, ReduceMayBeInPlaceAtTheRoot) {
  std::vector<std::vector<double>> data(kMembers, std::vector<double>(5000, 1.5));
  onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
    return reduce(group, std::span<const double>(data[rank]), std::span(data[rank]), 2);
  });
  EXPECT_EQ(data[2], std::vector<double>(5000, 6));
  EXPECT_EQ(data[1], std::vector<double>(5000, 1.5));
}

TEST_P(Blocks, AreEqualWithoutSizes) {
  std::vector<std::vector<float>> inputs, outputs(kMembers, std::vector<float>(kMembers * 100)), back(kMembers);
  for (size_t rank = 0; rank < kMembers; ++rank) {
    inputs.emplace_back(100, static_cast<float>(rank));
    back[rank].resize(100);
  }
  onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
    return allGather(group, std::as_bytes(std::span(inputs[rank])), std::as_writable_bytes(std::span(outputs[rank])));
  });
  onAll(groups_, [&](const ProcessGroup& group, size_t rank) {
    return reduceScatter(group, std::span<const float>(outputs[rank]), std::span(back[rank]));
  });
  for (size_t rank = 0; rank < kMembers; ++rank)
    EXPECT_EQ(back[rank], std::vector<float>(100, static_cast<float>(kMembers * rank)));
}

TEST_P(Blocks, OfAnAllToAllAreEqualWithoutSizes) {
  std::vector<std::vector<std::byte>> inputs, outputs(kMembers, std::vector<std::byte>(kMembers * 100));
  for (size_t rank = 0; rank < kMembers; ++rank) inputs.push_back(bytesOf(rank, 0, kMembers * 100));
  onAll(groups_, [&](const ProcessGroup& group, size_t rank) { return allToAll(group, inputs[rank], outputs[rank]); });
  for (size_t rank = 0; rank < kMembers; ++rank) {
    std::vector<std::byte> wanted;
    for (size_t from = 0; from < kMembers; ++from) append(wanted, bytesOf(from, rank * 100, 100));
    EXPECT_EQ(outputs[rank], wanted);
  }
}

// Rank 2 gives blocks of another size, or names the sizes that the others leave out.
TEST_P(Blocks, OfAnAllToAllThatOneMemberCallsOtherwiseFailEverywhere) {
  for (const bool namesSizes : {false, true}) {
    std::vector<std::vector<std::byte>> inputs(kMembers, std::vector<std::byte>(40)), outputs = inputs;
    if (!namesSizes) inputs[2].resize(44), outputs[2].resize(44);
    std::vector<Future<void>> futures;
    for (size_t rank = 0; rank < kMembers; ++rank) {
      const Sizes sizes = rank == 2 && namesSizes ? Sizes{10, 10, 10, 10} : Sizes{};
      futures.push_back(allToAll(groups_[rank], inputs[rank], outputs[rank], sizes, sizes));
    }
    for (auto& future : futures) {
      const Status why = failureOf(future);
      EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
      EXPECT_TRUE(contains(why.message(), "allToAll of 40 uint8") && contains(why.message(), "worker 'w2' (rank 2)"));
      EXPECT_TRUE(contains(why.message(), namesSizes ? "allToAll of blocks of any sizes" : "allToAll of 44 uint8"));
    }
  }
}

TEST_P(Blocks, OfOtherSizesOnAnotherMemberFailEverywhere) {
  std::vector<std::byte> input(10);
  std::vector<std::vector<std::byte>> outputs(kMembers, std::vector<std::byte>(40));
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < kMembers; ++rank) {
    const Sizes sizes = rank == 2 ? Sizes{5, 15, 10, 10} : Sizes{10, 10, 10, 10};
    futures.push_back(allGather(groups_[rank], input, outputs[rank], sizes));
  }
  for (auto& future : futures) {
    const Status why = failureOf(future);
    EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
    EXPECT_TRUE(contains(why.message(), "worker 'w2' (rank 2)") && contains(why.message(), "blocks of other sizes"))
        << why.message();
  }
}

TEST_P(Blocks, OfAnAllToAllThatTwoMembersSeeDifferentlyNameThem) {
  std::vector<std::byte> memory(40);
  std::vector<std::vector<std::byte>> outputs(kMembers, std::vector<std::byte>(43));
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < kMembers; ++rank) {
    const Sizes received = rank == 1 ? Sizes{10, 10, 10, 13} : Sizes{10, 10, 10, 10};
    futures.push_back(allToAll(groups_[rank], memory, MutableBytes(outputs[rank]).first(sumOf(received)),
                               {10, 10, 10, 10}, received));
  }
  for (size_t rank = 0; rank < kMembers; ++rank) {
    const Status why = failureOf(futures[rank]);
    EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
    EXPECT_TRUE(
        contains(why.message(), "worker 'w3' (rank 3) sends 10 elements to worker 'w1' (rank 1), which expects 13"))
        << why.message();
  }
  std::vector<Future<void>> later;
  for (const ProcessGroup& group : groups_) later.push_back(barrier(group));
  test::waitAll(later);  // the group goes on
}

TEST(BlocksCheck, RefusesSizesThatDoNotFit) {
  GroupJob job(2);
  ProcessGroup group = job.make(0);
  std::vector<std::byte> five(5), ten(10);
  const auto refused = [](auto call) { return test::messageOf<ArgumentError>(call); };
  EXPECT_TRUE(contains(refused([&] { allGather(group, five, five); }), "the output has 5 bytes"));
  EXPECT_TRUE(contains(refused([&] { allGather(group, five, ten, {5}); }), "1 sizes of blocks were given"));
  EXPECT_TRUE(contains(refused([&] { allGather(group, five, ten, {6, 4}); }), "the input has 5 bytes"));
  EXPECT_TRUE(contains(refused([&] { allGather(group, five, five, {5, UINT64_MAX}); }), "the output has 5 bytes"));
  EXPECT_TRUE(contains(refused([&] { gather(group, five, ten, 2); }), "there is no rank 2"));
  EXPECT_TRUE(contains(refused([&] { gather(group, five, ten, 1); }), "the output has 10 bytes"));
  EXPECT_TRUE(contains(refused([&] { scatter(group, five, five, -1); }), "there is no rank -1"));
  EXPECT_TRUE(contains(refused([&] { scatter(group, five, five, 0); }), "the input has 5 bytes"));
  EXPECT_TRUE(contains(refused([&] { allToAll(group, five, ten); }), "the input has 5 bytes"));
  EXPECT_TRUE(contains(refused([&] { allToAll(group, ten, ten, {6, 4}, {5, 5}); }), "sends itself 6 bytes"));
  std::vector<float> three(3), one(1);
  EXPECT_TRUE(contains(refused([&] { reduce(group, std::span<const float>(three), std::span(one), 0); }),
                       "the output has 4 bytes"));
  EXPECT_TRUE(contains(
      refused([&] { reduce(group, Bytes(ten).first(7), MutableBytes(ten).first(4), group::DataType::kFloat32, 0); }),
      "the input has 7 bytes, which are no whole number of float32"));
  EXPECT_TRUE(contains(refused([&] { reduceScatter(group, std::span<const float>(three), std::span(one)); }),
                       "the input has 12 bytes"));
}

TEST(BlocksAlone, OfOneMemberAreCopies) {
  GroupJob job(1);
  const ProcessGroup group = job.make(0);
  for (size_t size : {0, 100}) {
    const std::vector<std::byte> input = bytesOf(0, 0, size);
    const auto copyBy = [&](auto operate) {
      std::vector<std::byte> output(size);
      operate(output).wait(test::kPatience);
      return output;
    };
    EXPECT_EQ(copyBy([&](auto& output) { return allGather(group, input, output); }), input);
    EXPECT_EQ(copyBy([&](auto& output) { return gather(group, input, output, 0); }), input);
    EXPECT_EQ(copyBy([&](auto& output) { return scatter(group, input, output, 0); }), input);
    EXPECT_EQ(copyBy([&](auto& output) { return allToAll(group, input, output); }), input);
  }
}

}  // namespace
}  // namespace treadle::blocks_test

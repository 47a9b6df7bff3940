// The memory that an operation makes for partial results.

#include <sys/mman.h>

#include "tests/core/group/group_job.h"
#include "tests/core/group/tap.h"
#include "tests/support/sanitizer.h"
#include "treadle/core/group/binomial_tree.h"

namespace treadle::scratch_test {
namespace {

using test::contains;
using test::Counter;
using test::failureOf;
using test::GroupJob;

// Memory that exists as addresses only, or with no flags as the system promises it.
class Mapped {
 public:
  explicit Mapped(size_t size, int flags = MAP_NORESERVE)
      : size_(size),
        memory_(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0)) {}
  ~Mapped() {
    if (valid()) ::munmap(memory_, size_);
  }
  Mapped(const Mapped&) = delete;
  Mapped& operator=(const Mapped&) = delete;

  bool valid() const { return memory_ != MAP_FAILED; }
  MutableBytes bytes() const { return {static_cast<std::byte*>(memory_), size_}; }

 private:
  const size_t size_;
  void* const memory_;
};

constexpr size_t kHugeBlock = size_t{1} << 40;

// A reduce-scatter among three, whose partial sums have two blocks: more than there is.
class HugeScratch : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::kSanitized) GTEST_SKIP() << "a sanitizer ends a program that asks for so much";
    if (!input_.valid() || !output_.valid()) GTEST_SKIP() << "the system reserves no memory that is not there";
    if (Mapped(2 * kHugeBlock, 0).valid()) GTEST_SKIP() << "the system promises any memory";
  }
  Future<void> start(const ProcessGroup& group) const {
    return reduceScatter(group, input_.bytes(), output_.bytes(), group::DataType::kFloat32);
  }

  const Mapped input_{3 * kHugeBlock}, output_{kHugeBlock};
  GroupJob job_{3};
  const std::vector<ProcessGroup> groups_ = job_.makeAll({.algorithm = group::Algorithm::kCirculant});
};

TEST_F(HugeScratch, FailsTheOperationAndTheGroupGoesOn) {
  std::vector<Future<void>> futures;
  for (const ProcessGroup& group : groups_) futures.push_back(start(group));
  for (Future<void>& future : futures) {
    const Status why = failureOf(future);
    EXPECT_EQ(why.code(), Code::kResourceExhausted) << why.toString();
    EXPECT_TRUE(contains(why.message(), "has no memory for " + std::to_string(2 * kHugeBlock) + " bytes"))
        << why.message();
  }
  futures.clear();
  for (const ProcessGroup& group : groups_) futures.push_back(barrier(group));
  test::waitAll(futures);
}

// The input and the output as float32, which is twice as much.
TEST_F(HugeScratch, OfHalvesFailsTheOperationToo) {
  std::vector<Future<void>> futures;
  for (const ProcessGroup& group : groups_)
    futures.push_back(reduceScatter(group, input_.bytes(), output_.bytes(), group::DataType::kFloat16));
  for (Future<void>& future : futures) {
    const Status why = failureOf(future);
    EXPECT_EQ(why.code(), Code::kResourceExhausted) << why.toString();
    const std::string wanted = "has no memory for " + std::to_string(8 * kHugeBlock) + " bytes, in which 16-bit floats";
    EXPECT_TRUE(contains(why.message(), wanted)) << why.message();
  }
}

// Two operations before it may move, and wait for rank 2.
TEST_F(HugeScratch, IsNotMadeBeforeTheDataMayMove) {
  constexpr size_t kCount = 300'000;
  std::vector<std::vector<float>> inputs(3, std::vector<float>(kCount, 1)), outputs(6, std::vector<float>(kCount / 3));
  std::vector<Future<void>> futures;
  const auto startTwo = [&](size_t rank) {
    for (size_t i : {rank, rank + 3})
      futures.push_back(reduceScatter(groups_[rank], std::span<const float>(inputs[rank]), std::span(outputs[i])));
  };
  startTwo(0);
  startTwo(1);
  Future<void> huge = start(groups_[0]);
  huge.cancel();
  EXPECT_EQ(failureOf(huge).code(), Code::kCancelled) << failureOf(huge).toString();
  startTwo(2);
  test::waitAll(futures);
  for (const auto& output : outputs) EXPECT_EQ(output, std::vector<float>(kCount / 3, 3));
}

// Above 16 members starts go along the tree. The third of three operations may not move its data while the data of the
// first two is held, and yet all starts come.
TEST(Scratch, DoesNotHoldUpTheAgreementOfAnOperationThatWaits) {
  constexpr size_t kMembers = 17, kOperations = 3, kBlock = 20'000;
  std::vector<test::Tap> taps(kMembers);
  GroupJob job(kMembers, {}, [&](int rank, group::GroupService& service) -> cluster::MessageHandler& {
    test::Tap& tap = taps[static_cast<size_t>(rank)];
    tap.connect(service);
    return tap;
  });
  const std::vector<ProcessGroup> groups = job.makeAll({.algorithm = group::Algorithm::kCirculant});
  std::vector<Future<void>> futures;
  for (const ProcessGroup& group : groups) futures.push_back(barrier(group));
  test::waitAll(futures);
  Counter starts;  // that come to rank 0 for the last operation, from its children
  for (test::Tap& tap : taps)
    tap.setRule(tap.groupAt(0), [&, isRoot = &tap == &taps.front()](int, const group::Message& message) {
      if (isRoot && message.kind == group::MessageKind::kStart && message.sequence == kOperations) starts.add();
      return message.kind == group::MessageKind::kChunk;
    });
  const std::vector<float> input(kMembers * kBlock, 1);
  std::vector<std::vector<float>> outputs(kMembers * kOperations, std::vector<float>(kBlock));
  futures.clear();
  for (size_t i = 0; i < outputs.size(); ++i)
    futures.push_back(reduceScatter(groups[i % kMembers], std::span(input), std::span(outputs[i])));
  starts.waitFor(static_cast<int>(group::childrenOf(0, kMembers).size()));
  for (test::Tap& tap : taps) tap.letGo();
  test::waitAll(futures);
  for (const auto& output : outputs) EXPECT_EQ(output, std::vector<float>(kBlock, kMembers));
}

}  // namespace
}  // namespace treadle::scratch_test

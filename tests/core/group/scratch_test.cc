// The memory that an operation makes for partial results.

#include <sys/mman.h>

#include "tests/core/group/group_job.h"
#include "tests/support/sanitizer.h"

namespace treadle::scratch_test {
namespace {

using test::contains;
using test::failureOf;
using test::GroupJob;

// Memory that exists as addresses only.
class Reserved {
 public:
  explicit Reserved(size_t size)
      : size_(size),
        memory_(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)) {}
  ~Reserved() {
    if (valid()) ::munmap(memory_, size_);
  }
  Reserved(const Reserved&) = delete;
  Reserved& operator=(const Reserved&) = delete;

  bool valid() const { return memory_ != MAP_FAILED; }
  MutableBytes bytes() const { return {static_cast<std::byte*>(memory_), size_}; }

 private:
  const size_t size_;
  void* const memory_;
};

TEST(Scratch, WithoutMemoryFailsTheOperationAndTheGroupGoesOn) {
  if (test::kSanitized) GTEST_SKIP() << "a sanitizer ends a program that asks for so much";
  constexpr size_t kBlock = size_t{1} << 40;
  const Reserved input(3 * kBlock), output(kBlock);
  if (!input.valid() || !output.valid()) GTEST_SKIP() << "the system reserves no memory that is not there";
  GroupJob job(3);
  const std::vector<ProcessGroup> groups = job.makeAll({.algorithm = group::Algorithm::kCirculant});
  std::vector<Future<void>> futures;
  for (const ProcessGroup& group : groups)
    futures.push_back(reduceScatter(group, input.bytes(), output.bytes(), group::DataType::kFloat32));
  for (Future<void>& future : futures) {
    const Status why = failureOf(future);
    EXPECT_EQ(why.code(), Code::kResourceExhausted) << why.toString();
    EXPECT_TRUE(contains(why.message(), "has no memory for " + std::to_string(2 * kBlock) + " bytes")) << why.message();
  }
  futures.clear();
  for (const ProcessGroup& group : groups) futures.push_back(barrier(group));
  test::waitAll(futures);
}

}  // namespace
}  // namespace treadle::scratch_test

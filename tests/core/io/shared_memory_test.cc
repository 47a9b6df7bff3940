#include "treadle/core/io/shared_memory.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/readable.h"
#include "tests/support/resident.h"
#include "treadle/core/base/error.h"

namespace treadle::io::shared_memory_test {
namespace {

constexpr size_t kBytes = 1U << 20;

Fd duplicate(const SharedMemory& memory) { return Fd(::fcntl(memory.fd(), F_DUPFD_CLOEXEC, 0)); }

TEST(SharedMemory, isSeenByWhoeverAdoptsItsDescriptor) {
  SharedMemory ours = valueOrThrow(SharedMemory::create(kBytes));
  SharedMemory theirs = valueOrThrow(SharedMemory::adopt(duplicate(ours)));
  ASSERT_EQ(kBytes, theirs.bytes().size());
  EXPECT_EQ(ours.identity(), theirs.identity());
  ASSERT_NE(ours.bytes().data(), theirs.bytes().data());
  ours.bytes()[kBytes - 1] = std::byte{42};
  EXPECT_EQ(std::byte{42}, theirs.bytes()[kBytes - 1]);
  theirs.bytes()[0] = std::byte{17};
  EXPECT_EQ(std::byte{17}, ours.bytes()[0]);
}

TEST(SharedMemory, cannotBeShrunkOrGrownByAPeer) {
  SharedMemory memory = valueOrThrow(SharedMemory::create(kBytes));
  EXPECT_NE(0, ::ftruncate(memory.fd(), 0));
  EXPECT_NE(0, ::ftruncate(memory.fd(), 2 * kBytes));
  EXPECT_NE(0, ::fcntl(memory.fd(), F_ADD_SEALS, F_SEAL_WRITE));
}

// What could be cut off under a reader is refused, and so is what is no memory at all.
TEST(SharedMemory, ofAPeerIsRefusedUnlessItsSizeIsSealed) {
  Fd unsealed(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(0, ::ftruncate(unsealed.get(), kBytes));
  EXPECT_EQ(Code::kDataLoss, SharedMemory::adopt(Fd(::dup(unsealed.get()))).status().code());
  ASSERT_EQ(0, ::fcntl(unsealed.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SEAL));
  EXPECT_EQ(Code::kDataLoss, SharedMemory::adopt(std::move(unsealed)).status().code());
  EXPECT_EQ(Code::kDataLoss, SharedMemory::adopt(Fd(::open("/dev/null", O_RDWR | O_CLOEXEC))).status().code());
  std::array<int, 2> ends{};
  ASSERT_EQ(0, ::pipe(ends.data()));
  EXPECT_EQ(Code::kDataLoss, SharedMemory::adopt(Fd(ends[0])).status().code());
  ::close(ends[1]);
  Fd empty(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(0, ::fcntl(empty.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  EXPECT_EQ(Code::kDataLoss, SharedMemory::adopt(std::move(empty)).status().code());
}

TEST(SharedMemory, isWrittenFreshAndDiscarded) {
  for (bool shareable : {true, false}) {
    SharedMemory memory = valueOrThrow(shareable ? SharedMemory::create(kBytes) : SharedMemory::createPrivate(kBytes));
    EXPECT_EQ(shareable, memory.shareable());
    std::vector<std::byte> bytes(10'000, std::byte{9});
    memory.writeFresh(4096, bytes);
    EXPECT_EQ(std::byte{0}, memory.bytes()[4095]);
    EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory.bytes().begin() + 4096));
    EXPECT_EQ(std::byte{0}, memory.bytes()[4096 + bytes.size()]);
    memory.discard(4096, 4096);
    EXPECT_EQ(std::byte{0}, memory.bytes()[4096]);
    EXPECT_EQ(std::byte{9}, memory.bytes()[8192]);
  }
}

// ---- reclaiming

using Range = SharedMemory::Range;

constexpr size_t kPage = 4096;

// Memory of a maker that can be ended, in which every byte is 7.
class Reclaiming : public ::testing::Test {
 protected:
  Reclaiming() { std::fill_n(maker->bytes().data(), kBytes, std::byte{7}); }
  SharedMemory adopt() const { return valueOrThrow(SharedMemory::adopt(duplicate(*maker))); }
  static size_t residentIn(const SharedMemory& memory) { return test::residentBytes(memory.bytes().data(), kBytes); }
  static bool keeps(const SharedMemory& memory, Range range) {
    Bytes bytes = memory.bytes().subspan(range.begin, range.size);
    return std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{7}; });
  }

  std::optional<SharedMemory> maker = valueOrThrow(SharedMemory::create(kBytes));
};

TEST_F(Reclaiming, waitsForTheEndOfTheMaker) {
  SharedMemory adopter = adopt();
  EXPECT_TRUE(adopter.reclaimable());
  EXPECT_FALSE(adopter.shareable());
  EXPECT_FALSE(maker->reclaimable());
  adopter.reclaim({});
  EXPECT_EQ(kBytes, residentIn(adopter));
  maker.reset();
  adopter.reclaim({});
  EXPECT_EQ(0U, residentIn(adopter));
}

TEST_F(Reclaiming, keepsTheWholePagesOfWhatIsInUse) {
  SharedMemory adopter = adopt();
  maker.reset();
  const std::array<Range, 3> kept = {{{0, 1}, {3 * kPage - 1, 2}, {kBytes - 1, 1}}};
  adopter.reclaim(kept);
  EXPECT_EQ(4 * kPage, residentIn(adopter));
  for (Range range : {Range{0, kPage}, Range{2 * kPage, 2 * kPage}, Range{kBytes - kPage, kPage}})
    EXPECT_TRUE(keeps(adopter, range)) << range.begin;
}

TEST_F(Reclaiming, keepsWhatOtherAdoptersUse) {
  SharedMemory a = adopt(), b = adopt();
  std::optional<SharedMemory> silent = adopt();
  maker.reset();
  const Range atA{kPage, kPage}, atB{8 * kPage, 2 * kPage};
  a.reclaim(std::array{atA});
  b.reclaim(std::array{atB});
  EXPECT_EQ(kBytes, residentIn(a)) << "one of the adopters may use all of it";
  silent.reset();
  a.reclaim(std::array{atA});
  EXPECT_EQ(atA.size + atB.size, residentIn(a));
  EXPECT_TRUE(keeps(a, atA) && keeps(b, atB));
  b.reclaim({});
  EXPECT_EQ(atA.size, residentIn(a));
  EXPECT_TRUE(keeps(a, atA));
}

// A child of fork(2) that has run `child` and lives until it is killed.
class Child {
 public:
  explicit Child(const std::function<void()>& child = [] {}) {
    std::array<int, 2> there{};
    EXPECT_EQ(0, ::pipe(there.data()));
    pid_ = ::fork();
    if (pid_ == 0) {
      child();
      (void)!::write(there[1], "!", 1);
      ::alarm(300);  // should the test crash
      for (;;) ::pause();
    }
    ::close(there[1]);
    Fd read(there[0]);
    EXPECT_TRUE(test::readable(read.get(), "the child"));
  }
  ~Child() {
    if (pid_ > 0) kill();
  }
  void kill() {
    ::kill(pid_, SIGKILL);
    EXPECT_LT(0, ::waitpid(std::exchange(pid_, 0), nullptr, 0));
  }

 private:
  pid_t pid_;
};

// A child of fork(2) has the pages of its parent before it, also when that is gone.
TEST_F(Reclaiming, waitsForTheForkedChildrenOfTheMaker) {
  Child child;
  SharedMemory adopter = adopt();
  maker.reset();
  adopter.reclaim({});
  EXPECT_EQ(kBytes, residentIn(adopter));
  child.kill();
  adopter.reclaim({});
  EXPECT_EQ(0U, residentIn(adopter));
}

TEST_F(Reclaiming, takesWhatAKilledAdopterUsed) {
  Fd descriptor = duplicate(*maker);
  std::optional<SharedMemory> another;
  Child child([&] { another.emplace(valueOrThrow(SharedMemory::adopt(std::move(descriptor)))), maker.reset(); });
  SharedMemory adopter = adopt();
  descriptor.reset();
  maker.reset();
  adopter.reclaim({});
  EXPECT_EQ(kBytes, residentIn(adopter));
  child.kill();
  adopter.reclaim({});
  EXPECT_EQ(0U, residentIn(adopter));
}

// Nobody would know when the maker has ended.
TEST_F(Reclaiming, leavesMemoryAloneWhoseMakerDidNotLockIt) {
  Fd unlocked(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(0, ::ftruncate(unlocked.get(), kBytes));
  ASSERT_EQ(0, ::fcntl(unlocked.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL));
  SharedMemory adopter = valueOrThrow(SharedMemory::adopt(std::move(unlocked)));
  std::fill_n(adopter.bytes().data(), kBytes, std::byte{7});
  EXPECT_FALSE(adopter.reclaimable());
  adopter.reclaim({});
  EXPECT_EQ(kBytes, residentIn(adopter));
}

// Whether it gets them is up to the system.
TEST(SharedMemory, asksForHugePages) {
  if (!std::filesystem::exists("/sys/kernel/mm/transparent_hugepage")) GTEST_SKIP() << "the kernel has none";
  for (bool shareable : {true, false}) {
    SharedMemory memory = valueOrThrow(shareable ? SharedMemory::create(kBytes) : SharedMemory::createPrivate(kBytes));
    const auto address = reinterpret_cast<uintptr_t>(memory.bytes().data());
    std::ifstream maps("/proc/self/smaps");
    bool here = false, asked = false;
    for (std::string line; std::getline(maps, line);) {
      uintptr_t begin = 0, end = 0;
      if (std::sscanf(line.c_str(), "%zx-%zx ", &begin, &end) == 2) here = begin <= address && address < end;
      if (here && line.starts_with("VmFlags:")) asked = line.find(" hg") != std::string::npos;
    }
    EXPECT_TRUE(asked) << shareable;
  }
}

}  // namespace
}  // namespace treadle::io::shared_memory_test

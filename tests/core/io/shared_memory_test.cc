#include "treadle/core/io/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>

#include "gtest/gtest.h"
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

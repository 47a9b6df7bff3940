#include "treadle/core/io/process_memory.h"

#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>

#include "treadle/core/io/fd.h"

namespace treadle::io::process_memory_test {
namespace {

uint64_t addressOf(const void* object) { return reinterpret_cast<uint64_t>(object); }

TEST(ProcessMemory, isReadWhereThereIsSome) {
  int ends[2];
  ASSERT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
  Fd a(ends[0]), b(ends[1]);
  Result<ProcessMemory> self = ProcessMemory::ofPeer(a.get());
  ASSERT_TRUE(self.ok()) << self.status().toString();
  uint64_t number = 0x1234, found = 0;
  ASSERT_TRUE(self->read(addressOf(&number), std::as_writable_bytes(std::span(&found, 1))).ok());
  EXPECT_EQ(number, found);
  Status nowhere = self->read(8, std::as_writable_bytes(std::span(&found, 1)));
  EXPECT_FALSE(nowhere.ok()) << "there is nothing at address 8";
}

TEST(ProcessMemory, ofAProcessThatIsGoneIsNotThere) {
  pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(child, ::waitpid(child, nullptr, 0));
  uint64_t found = 0;
  EXPECT_EQ(Code::kPeerLost,
            ProcessMemory(child).read(addressOf(&found), std::as_writable_bytes(std::span(&found, 1))).code());
}

// In this process: process_vm_readv fails with `error` from now on, as under a container's seccomp profile.
bool forbidReading(uint16_t error) {
  std::array<sock_filter, 4> filter = {
      sock_filter BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      sock_filter BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, __NR_process_vm_readv, 0, 1),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      sock_filter BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{filter.size(), filter.data()};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// What it is told then, by a child process that may not read.
void tellWhyNot(uint16_t error) {
  if (!forbidReading(error)) std::fputs("no filter can be set", stderr), ::_exit(1);
  uint64_t found = 0;
  Status why = ProcessMemory(::getpid()).read(addressOf(&found), std::as_writable_bytes(std::span(&found, 1)));
  std::fputs(why.toString().c_str(), stderr);
  ::_exit(why.code() == Code::kFailedPrecondition ? 0 : 1);
}

TEST(ProcessMemoryDeathTest, thatMayNotBeReadSaysWhatForbidsIt) {
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(tellWhyNot(ENOSYS), ::testing::ExitedWithCode(0), "without process_vm_readv");
  EXPECT_EXIT(tellWhyNot(EPERM), ::testing::ExitedWithCode(0), "Yama forbids it|seccomp profile forbids");
  EXPECT_EXIT(tellWhyNot(ENOMEM), ::testing::ExitedWithCode(0), "process_vm_readv\\(2\\) fails");
}

}  // namespace
}  // namespace treadle::io::process_memory_test

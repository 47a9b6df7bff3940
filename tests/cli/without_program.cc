// Runs a program without a system call, as a container's seccomp profile does: without_program CALL ERROR PROGRAM
// ARGUMENTS. The call fails with that error.

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <string_view>

int main(int count, char** arguments) {
  if (count < 4) return 2;
  const std::string_view call = arguments[1], error = arguments[2];
  const unsigned number = call == "memfd_create" ? SYS_memfd_create : SYS_process_vm_readv;
  const unsigned code = error == "ENOSYS" ? ENOSYS : EPERM;
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | code),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  sock_fprog program{sizeof filter / sizeof *filter, filter};
  if (::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
    return std::perror("without_program: seccomp"), 1;
  ::execvp(arguments[3], arguments + 3);
  return std::perror(arguments[3]), 127;
}

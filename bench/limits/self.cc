#include "bench/limits/self.h"

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <system_error>

extern char** environ;

namespace bench {
namespace {

constexpr int kFirst = 3;  // after standard input, output and error

void check(int error, const char* what) {
  if (error != 0) throw std::system_error(error, std::generic_category(), what);
}

// Copies above all numbers that are to be filled, so that none is overwritten before it is used.
std::vector<int> raised(const std::vector<int>& sockets) {
  std::vector<int> copies;
  for (int socket : sockets) {
    copies.push_back(::fcntl(socket, F_DUPFD_CLOEXEC, kFirst + static_cast<int>(sockets.size())));
    if (copies.back() < 0) check(errno, "fcntl");
  }
  return copies;
}

}  // namespace

pid_t startSelf(const std::vector<std::string>& arguments, const std::vector<int>& sockets) {
  std::vector<std::string> words = arguments;
  words.insert(words.begin(), "bench");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  check(::posix_spawn_file_actions_init(&actions), "posix_spawn_file_actions_init");
  std::vector<int> copies = raised(sockets);
  int number = kFirst;
  for (int copy : copies) check(::posix_spawn_file_actions_adddup2(&actions, copy, number++), "adddup2");
  pid_t pid = -1;
  int error = ::posix_spawn(&pid, "/proc/self/exe", &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  for (int copy : copies) ::close(copy);
  check(error, "posix_spawn");
  return pid;
}

}  // namespace bench

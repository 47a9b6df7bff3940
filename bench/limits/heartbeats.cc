// The least that an idle worker has to do, without any library: one thread over epoll, two sockets to each peer, a
// heartbeat of 24 bytes on one of them each second, and the peers' heartbeats on the other. Prints the CPU time that
// this takes in each second. The peers are processes of their own that do the same.

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cstdio>
#include <cstring>
#include <future>
#include <system_error>

#include "bench/limits/cpu_time.h"
#include "bench/limits/self.h"
#include "bench/ours/measure.h"

namespace {

using Clock = std::chrono::steady_clock;
constexpr Clock::duration kInterval = std::chrono::seconds(1);  // a fifth of JoinOptions::heartbeatTimeout
constexpr const char* kFlag = "--peer";
constexpr int kInherited = 3;

int checked(int result, const char* what) {
  if (result < 0) throw std::system_error(errno, std::generic_category(), what);
  return result;
}

// Reads what comes until `deadline`; false when a socket was closed.
bool readUntil(int epoll, Clock::time_point deadline) {
  while (true) {
    auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return true;
    std::array<epoll_event, 16> events;
    int count = ::epoll_wait(epoll, events.data(), events.size(), static_cast<int>(left));
    for (int i = 0; i < count; ++i) {
      std::array<char, 4096> bytes;
      if (::read(events[i].data.fd, bytes.data(), bytes.size()) <= 0) return false;
    }
  }
}

int watch(const std::vector<int>& sockets) {
  int epoll = checked(::epoll_create1(EPOLL_CLOEXEC), "epoll_create1");
  for (int socket : sockets) {
    epoll_event event{.events = EPOLLIN, .data = {.fd = socket}};
    checked(::epoll_ctl(epoll, EPOLL_CTL_ADD, socket, &event), "epoll_ctl");
  }
  return epoll;
}

bool beat(int socket) {
  constexpr ssize_t kSize = 24;
  std::array<char, kSize> frame{};
  return ::send(socket, frame.data(), kSize, MSG_NOSIGNAL) == kSize;
}

// A heartbeat on each of `dialed` in every interval, until a socket of `all` is closed.
void run(const std::vector<int>& all, const std::vector<int>& dialed) {
  int epoll = watch(all);
  do {
    for (int socket : dialed)
      if (!beat(socket)) return;
  } while (readUntil(epoll, Clock::now() + kInterval));
}

struct Sockets {
  std::vector<int> all, dialed;
};

// One that this process dialed and one that the peer dialed.
pid_t startPeer(Sockets& sockets) {
  int first[2], second[2];
  checked(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, first), "socketpair");
  checked(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, second), "socketpair");
  sockets.all.insert(sockets.all.end(), {first[0], second[0]});
  sockets.dialed.push_back(first[0]);
  pid_t pid = bench::startSelf({kFlag}, {first[1], second[1]});
  ::close(first[1]);
  ::close(second[1]);
  return pid;
}

double measure(int peers, double settle, double seconds) {
  Sockets sockets;
  std::vector<pid_t> started;
  for (int i = 0; i < peers; ++i) started.push_back(startPeer(sockets));
  auto result = std::async(std::launch::async, [&] {
    std::this_thread::sleep_for(std::chrono::duration<double>(settle));
    double time = bench::cpuTimePerSecond(std::chrono::duration<double>(seconds));
    for (int socket : sockets.all) ::shutdown(socket, SHUT_RDWR);
    return time;
  });
  run(sockets.all, sockets.dialed);
  for (pid_t pid : started) ::waitpid(pid, nullptr, 0);
  return result.get();
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc == 2 && std::strcmp(argv[1], kFlag) == 0) {
    run({kInherited, kInherited + 1}, {kInherited + 1});
    return 0;
  }
  CLI::App app("CPU time of a process that has idle peers and only sends and reads heartbeats");
  int peers = 8;
  double settle = 3, seconds = 20;
  app.add_option("--peers", peers, "how many")->check(CLI::Range(1, 200));
  app.add_option("--settle", settle, "seconds before it is watched")->check(CLI::NonNegativeNumber);
  app.add_option("--seconds", seconds, "how long it is watched")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  bench::print("idle_cpu", {"heartbeats_only", "us/s", {measure(peers, settle, seconds)}});
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench: %s\n", error.what());
  return 1;
}

#include "treadle/cli/raw_partner.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <vector>

#include "treadle/core/io/socket.h"

namespace treadle::cli {
namespace {

struct Ends {
  io::Fd ours, theirs;
};

Result<Ends> unixPair() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    return io::errnoStatus(Code::kResourceExhausted, "no socket can be made", errno);
  return Ends{io::Fd(ends[0]), io::Fd(ends[1])};
}

Result<Ends> tcpPair(TimePoint deadline) {
  Result<io::Address> any = io::Address::tcp("127.0.0.1", 0);
  Result<io::Fd> listener = any.ok() ? io::listenOn(*any) : any.status();
  if (!listener.ok()) return std::move(listener).status();
  Result<io::Address> address = io::Address::ofSocket(listener->get());
  Result<io::Fd> ours = address.ok() ? io::connectTo(*address, deadline) : address.status();
  if (!ours.ok()) return std::move(ours).status();
  Result<io::Fd> theirs = io::acceptFrom(listener->get());
  if (!theirs.ok()) return std::move(theirs).status();
  for (int fd : {ours->get(), theirs->get()}) (void)::fcntl(fd, F_SETFL, 0);  // blocking, as a plain program has it
  return Ends{std::move(*ours), std::move(*theirs)};
}

void setLimit(int fd, Duration limit) {
  auto seconds = std::chrono::duration_cast<std::chrono::seconds>(limit);
  timeval time{.tv_sec = seconds.count() + 1, .tv_usec = 0};
  for (int direction : {SO_RCVTIMEO, SO_SNDTIMEO}) (void)::setsockopt(fd, SOL_SOCKET, direction, &time, sizeof time);
}

bool writeWhole(int fd, Bytes bytes) {
  while (!bytes.empty()) {
    ssize_t size = ::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(size));
  }
  return true;
}

bool readWhole(int fd, MutableBytes bytes) {
  while (!bytes.empty()) {
    ssize_t size = ::recv(fd, bytes.data(), bytes.size(), 0);
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(size));
  }
  return true;
}

}  // namespace

Result<RawPartner> RawPartner::start(bool overUnix, size_t messageBytes, Duration limit) {
  Result<Ends> ends = overUnix ? unixPair() : tcpPair(deadlineAfter(limit));
  if (!ends.ok()) return std::move(ends).status();
  setLimit(ends->ours.get(), limit);
  std::string what = std::to_string(ends->theirs.get()) + ":" + std::to_string(messageBytes);
  Result<io::Process> process =
      io::Process::start({"/proc/self/exe", {"bench", kOption, what}, {}, {ends->theirs.get()}});
  if (!process.ok()) return std::move(process).status();
  return RawPartner(std::move(ends->ours), std::move(*process));
}

Status RawPartner::roundTrip(Bytes message, MutableBytes answer) {
  if (writeWhole(socket_.get(), message) && readWhole(socket_.get(), answer)) return {};
  return io::errnoStatus(Code::kPeerLost, "the process that raw messages are exchanged with is gone or too slow",
                         errno);
}

int RawPartner::serve(int socket, size_t messageBytes) {
  std::vector<std::byte> message(messageBytes);
  while (readWhole(socket, message) && writeWhole(socket, message)) {}
  return 0;
}

}  // namespace treadle::cli

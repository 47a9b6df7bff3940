#pragma once
// Between workers of one process, who dial 127.0.0.2 where the others listen at 127.0.0.1: delays what passes, and
// keeps the order of each connection. So messages of different connections overtake each other.

#include <sys/socket.h>

#include <array>
#include <atomic>
#include <list>
#include <memory>
#include <thread>

#include "tests/support/seeds.h"
#include "treadle/core/base/error.h"
#include "treadle/core/io/socket.h"

namespace treadle::test {

class DelayingRelay {
 public:
  static constexpr const char* kHost = "127.0.0.2";

  // For who listens at this port. What it reads waits for up to `longest`, as a generator with this seed draws.
  DelayingRelay(uint16_t port, uint64_t seed, std::chrono::microseconds longest)
      : worker_(valueOrThrow(io::Address::tcp("127.0.0.1", port))),
        listener_(valueOrThrow(io::listenOn(valueOrThrow(io::Address::tcp(kHost, port))))),
        longest_(longest),
        random_(seed),
        acceptor_([this] { accept(); }) {}

  // Ends the connections that are left.
  ~DelayingRelay() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    for (const std::unique_ptr<Link>& link : links_)
      for (const io::Fd* end : {&link->dialer, &link->worker}) ::shutdown(end->get(), SHUT_RDWR);
  }
  DelayingRelay(const DelayingRelay&) = delete;
  DelayingRelay& operator=(const DelayingRelay&) = delete;

  uint64_t delayed() const { return delayed_; }

 private:
  struct Link {
    io::Fd dialer, worker;
    std::jthread to = {}, from = {};
  };

  void accept() {
    while (io::waitFor(listener_.get(), POLLIN, kNever)) {
      Result<io::Fd> dialer = io::acceptFrom(listener_.get());
      if (!dialer.ok()) return;  // as listening ended
      if (!dialer->valid()) continue;
      Result<io::Fd> worker = io::connectTo(worker_, deadlineAfter(std::chrono::minutes(1)));
      if (!worker.ok()) continue;  // the dialer is closed: as if nobody listened
      auto link = std::make_unique<Link>(Link{*std::move(dialer), *std::move(worker)});
      link->to = std::jthread([this, &one = *link, seed = random_()] { pass(one.dialer, one.worker, Random(seed)); });
      link->from = std::jthread([this, &one = *link, seed = random_()] { pass(one.worker, one.dialer, Random(seed)); });
      links_.push_back(std::move(link));
    }
  }

  // Half of the pieces at once.
  void pass(const io::Fd& from, const io::Fd& to, Random random) {
    std::array<std::byte, 16 << 10> piece;
    while (io::waitFor(from.get(), POLLIN, kNever)) {
      const ssize_t got = ::recv(from.get(), piece.data(), piece.size(), 0);
      if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
      if (got <= 0) break;
      if (const uint64_t wait = pick(random, 2 * static_cast<uint64_t>(longest_.count()));
          wait < static_cast<uint64_t>(longest_.count())) {
        std::this_thread::sleep_for(std::chrono::microseconds(wait));
        ++delayed_;
      }
      if (!io::writeAll(to.get(), Bytes(piece).first(static_cast<size_t>(got)), kNever).ok()) break;
    }
    ::shutdown(to.get(), SHUT_WR);
  }

  const io::Address worker_;
  const io::Fd listener_;
  const std::chrono::microseconds longest_;
  std::atomic<uint64_t> delayed_ = 0;
  Random random_;                           // of the acceptor
  std::list<std::unique_ptr<Link>> links_;  // likewise, until it has ended
  std::thread acceptor_;
};

}  // namespace treadle::test

#pragma once
// One thread of calls in a soak: the worker it calls from, its name in the job, what it draws from, and a watch over
// every wait. One thread.

#include <algorithm>
#include <functional>
#include <random>

#include "tests/soak/handlers.h"
#include "tests/soak/peers.h"

namespace treadle::soak {

class Client {
 public:
  struct Limits {
    Duration timeout, lateness;  // of a call; how long after that it may end
    size_t largestBlob;          // bytes
  };
  Client(Worker& worker, int thread, Peers& peers, const Limits& limits, Number seed)
      : worker_(worker),
        name_(worker.self().name + "." + std::to_string(thread)),
        peers_(peers),
        limits_(limits),
        random_(seed) {}

  Worker& worker() { return worker_; }
  const std::string& name() const { return name_; }
  Peers& peers() { return peers_; }
  Duration timeout() const { return limits_.timeout; }
  size_t largestBlob() const { return limits_.largestBlob; }

  Number number() { return random_(); }
  Number below(Number limit) { return random_() % limit; }
  bool oneIn(Number n) { return below(n) == 0; }
  // Any worker that is there, this one too.
  int rank() { return peers_.any(random_()); }
  Path path(Number most) {
    Path path(below(most + 1));
    std::generate(path.begin(), path.end(), [this] { return rank(); });
    return path;
  }

  template <auto F, class... A>
  auto call(int to, A&&... arguments) {
    return bounded([&] { return worker_.call<F>(to, std::forward<A>(arguments)...); });
  }
  template <class T>
  T read(const RRef<T>& reference) {
    return bounded([&] { return reference.toHere(); });
  }
  template <class T>
  T wait(Future<T> future) {
    return bounded([&] { return future.wait(); });
  }

  // Runs `f`, which waits for one call. A promise: it ends, well or by an error, within the call's time limit.
  template <class F>
  auto bounded(F f) -> decltype(f()) {
    const TimePoint last = deadlineAfter(limits_.timeout + limits_.lateness);
    try {
      if constexpr (std::is_void_v<decltype(f())>) {
        f();
        checkTime(last);
      } else {
        auto result = f();
        checkTime(last);
        return result;
      }
    } catch (const Error& error) {
      checkTime(last, error.what());
      throw;
    }
  }

 private:
  static void checkTime(TimePoint last, const std::string& outcome = "its result") {
    if (Clock::now() > last) throw Wrong("a call ended " + toText(Clock::now() - last) + " too late with: " + outcome);
  }

  Worker& worker_;
  const std::string name_;
  Peers& peers_;
  const Limits limits_;
  std::mt19937_64 random_;
};

}  // namespace treadle::soak

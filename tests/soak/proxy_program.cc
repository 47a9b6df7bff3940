// Stands between workers and harms what passes, as it is told line by line on standard input:
//
//   serve NAME PORT [HOST]       listens for who dials the worker NAME, which is at 127.0.0.1:PORT; answers with
//                                "serve NAME OWN-PORT". At HOST, another loopback address, it is the same port: whoever
//                                dials a meeting address proves to know the key for that port
//   harm NAME KIND LIMIT COUNT   so many streams that are open now, drawn at random (0: all of them); each that is
//                                harmed says "did KIND NAME to|from BYTES" (how many had passed)
//   await NAME KIND LIMIT COUNT  the same for the streams of the next connections
//   calm NAME                    no more delays, and nothing for the next connections
//
// A stream is one direction of one connection. Kinds, each after 0 to LIMIT bytes more where nothing else is said:
// delay (each piece by up to LIMIT ms), dribble (in pieces of a few bytes), stall (nothing passes for LIMIT ms),
// silence (nothing passes any more), half (its end, and what follows is dropped), cut (both ends), reset (both, as a
// crashed host does), flip (one bit is another), twice (some bytes come twice).
//
//   proxy_program SEED

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <iostream>
#include <map>
#include <random>
#include <sstream>
#include <thread>
#include <vector>

#include "treadle/core/base/error.h"
#include "treadle/core/base/mutex.h"
#include "treadle/core/io/socket.h"

namespace treadle::soak {
namespace {

using Random = std::mt19937_64;
using std::chrono::milliseconds;

constexpr size_t kPieceBytes = 64 << 10;
constexpr std::array kLasting = {"delay", "dribble"};  // until calm; the others happen once

struct Harm {
  std::string kind;
  uint64_t limit = 0, after = 0;  // bytes
};

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// Two sockets and what passes between them. Lives as long as one of its threads.
class Link {
 public:
  Link(std::string name, io::Fd dialer, io::Fd worker, uint64_t seed)
      : name_(std::move(name)), dialer_(std::move(dialer)), worker_(std::move(worker)) {
    to_.random.seed(seed);
    from_.random.seed(seed + 1);
  }
  static void start(const std::shared_ptr<Link>& link) {
    std::thread([link] { link->pass(link->to_, link->dialer_, link->worker_, "to"); }).detach();
    std::thread([link] { link->pass(link->from_, link->worker_, link->dialer_, "from"); }).detach();
  }

  bool open() const { return !to_.over && !from_.over; }
  void harm(bool to, Harm harm) {
    Stream& stream = to ? to_ : from_;
    MutexLock lock(stream.mutex);
    stream.harm = std::move(harm);
  }

 private:
  struct Stream {
    Mutex mutex;
    Harm harm TREADLE_GUARDED_BY(mutex);
    std::atomic<bool> over = false;
    Random random;        // of the thread that passes
    uint64_t passed = 0;  // bytes, likewise
  };

  void pass(Stream& stream, const io::Fd& from, const io::Fd& to, const char* direction) {
    std::vector<std::byte> piece(kPieceBytes);
    try {
      while (io::waitFor(from.get(), POLLIN, kNever)) {
        ssize_t got = ::recv(from.get(), piece.data(), piece.size(), 0);
        if (got < 0 && (errno == EAGAIN || errno == EINTR)) continue;
        if (got <= 0) break;
        if (!forward(stream, to, Bytes(piece).first(static_cast<size_t>(got)), direction)) break;
      }
    } catch (const Error&) {
      // The other end is gone, and with it the stream.
    }
    stream.over = true;
    ::shutdown(to.get(), SHUT_WR);
  }

  // False when nothing passes any more.
  bool forward(Stream& stream, const io::Fd& to, Bytes piece, const char* direction) {
    Harm harm;
    {
      MutexLock lock(stream.mutex);
      const bool lasts = std::find(kLasting.begin(), kLasting.end(), stream.harm.kind) != kLasting.end();
      if (lasts || stream.harm.after < piece.size()) {
        harm = lasts ? stream.harm : std::exchange(stream.harm, {});
      } else {
        stream.harm.after -= piece.size();
      }
    }
    const bool goesOn = harm.kind.empty() ? write(to, piece) : harmed(stream, harm, to, piece, direction);
    stream.passed += piece.size();
    return goesOn;
  }

  static bool write(const io::Fd& to, Bytes bytes) {
    throwIfError(io::writeAll(to.get(), bytes, kNever));
    return true;
  }

  bool harmed(Stream& stream, const Harm& harm, const io::Fd& to, Bytes piece, const char* direction) {
    auto below = [&](uint64_t limit) { return limit == 0 ? 0 : stream.random() % limit; };
    if (harm.kind == "delay") {
      std::this_thread::sleep_for(milliseconds(below(harm.limit + 1)));
      return write(to, piece);
    }
    if (harm.kind == "dribble") return dribble(stream, to, piece, harm.limit);
    const Bytes before = piece.first(harm.after), rest = piece.subspan(harm.after);
    write(to, before);
    say("did " + harm.kind + " " + name_ + " " + direction + " " + std::to_string(stream.passed + harm.after));
    if (harm.kind == "stall") {
      std::this_thread::sleep_for(milliseconds(harm.limit));
      return write(to, rest);
    }
    if (harm.kind == "flip") {
      std::vector<std::byte> other(rest.begin(), rest.end());
      other[0] ^= std::byte{1} << below(8);
      return write(to, other);
    }
    if (harm.kind == "twice") return write(to, rest.first(1 + below(rest.size()))) && write(to, rest);
    if (harm.kind == "silence") return silence();
    if (harm.kind == "half") ::shutdown(to.get(), SHUT_WR);
    if (harm.kind == "cut" || harm.kind == "reset") cut(harm.kind == "reset");
    return harm.kind == "half" && swallow(to.get() == worker_.get() ? dialer_ : worker_);
  }

  // A few bytes at a time, the rest of a large piece at once.
  bool dribble(Stream& stream, const io::Fd& to, Bytes piece, uint64_t limit) {
    for (int left = 40; left > 0 && !piece.empty(); --left) {
      const size_t some = std::min<size_t>(piece.size(), 1 + stream.random() % (limit + 1));
      write(to, piece.first(some));
      piece = piece.subspan(some);
    }
    return write(to, piece);
  }

  void cut(bool reset) {
    for (const io::Fd* end : {&dialer_, &worker_}) {
      const sockaddr none{AF_UNSPEC, {}};
      if (reset) ::connect(end->get(), &none, sizeof none);  // ends it by an RST (man 2 connect, Linux)
      ::shutdown(end->get(), SHUT_RDWR);
    }
  }
  // Until the sender itself gives up.
  static bool swallow(const io::Fd& from) {
    std::array<std::byte, 4096> dropped;
    while (io::waitFor(from.get(), POLLIN, kNever) && ::recv(from.get(), dropped.data(), dropped.size(), 0) > 0)
      continue;
    return false;
  }
  // The bytes stay where they are, until the other direction has ended.
  bool silence() {
    while (open()) std::this_thread::sleep_for(milliseconds(20));
    return false;
  }

  const std::string name_;
  const io::Fd dialer_, worker_;
  Stream to_, from_;  // the worker
};

// Where one worker is dialed.
class Gate {
 public:
  Gate(std::string name, uint16_t port, const io::Address& own, uint64_t seed)
      : name_(std::move(name)),
        worker_(valueOrThrow(io::Address::tcp("127.0.0.1", port))),
        listener_(valueOrThrow(io::listenOn(own))),
        random_(seed) {
    std::thread([this] { accept(); }).detach();  // until the program ends
  }
  uint16_t port() const { return valueOrThrow(io::Address::ofSocket(listener_.get())).port(); }

  void harm(const std::string& kind, uint64_t limit, size_t count) {
    MutexLock lock(mutex_);
    std::erase_if(links_, [](const auto& link) { return !link->open(); });
    std::vector<std::pair<Link*, bool>> streams;
    for (const auto& link : links_)
      for (bool to : {true, false}) streams.emplace_back(link.get(), to);
    std::shuffle(streams.begin(), streams.end(), random_);
    if (count > 0 && count < streams.size()) streams.resize(count);
    for (auto [link, to] : streams) link->harm(to, draw(kind, limit));
  }
  void awaitNext(const std::string& kind, uint64_t limit, size_t count) {
    MutexLock lock(mutex_);
    awaited_.assign(count, {kind, limit});
  }
  void calm() {
    harm("", 0, 0);
    awaitNext("", 0, 0);
  }

 private:
  Harm draw(const std::string& kind, uint64_t limit) TREADLE_REQUIRES(mutex_) {
    const bool inBytes = kind != "delay" && kind != "dribble" && kind != "stall" && limit > 0;
    return {kind, limit, inBytes ? random_() % limit : 0};
  }
  void accept() {
    while (io::waitFor(listener_.get(), POLLIN, kNever)) {
      auto dialer = io::acceptFrom(listener_.get());
      if (!dialer.ok() || !dialer->valid()) continue;
      auto worker = io::connectTo(worker_, deadlineAfter(std::chrono::minutes(1)));
      if (!worker.ok()) continue;  // the dialer is closed: as if nobody listened there
      MutexLock lock(mutex_);
      links_.push_back(std::make_shared<Link>(name_, std::move(*dialer), std::move(*worker), random_()));
      if (!awaited_.empty()) {
        links_.back()->harm(random_() % 2 == 0, draw(awaited_.back().kind, awaited_.back().limit));
        awaited_.pop_back();
      }
      Link::start(links_.back());
    }
  }

  const std::string name_;
  const io::Address worker_;
  const io::Fd listener_;
  Mutex mutex_;
  Random random_ TREADLE_GUARDED_BY(mutex_);
  std::vector<Harm> awaited_ TREADLE_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Link>> links_ TREADLE_GUARDED_BY(mutex_);
};

void obey(const std::string& line, std::map<std::string, std::unique_ptr<Gate>>& gates, Random& random) {
  std::istringstream words(line);
  std::string what, name, kind;
  words >> what >> name;
  if (what == "serve") {
    uint16_t port = 0;
    words >> port;
    std::string host;
    const io::Address own =
        valueOrThrow(words >> host ? io::Address::tcp(host, port) : io::Address::tcp("127.0.0.1", 0));
    gates[name] = std::make_unique<Gate>(name, port, own, random());
    return say("serve " + name + " " + std::to_string(gates[name]->port()));
  }
  uint64_t limit = 0;
  size_t count = 0;
  words >> kind >> limit >> count;
  if (what == "harm") return gates.at(name)->harm(kind, limit, count);
  if (what == "await") return gates.at(name)->awaitNext(kind, limit, count);
  if (what == "calm") return gates.at(name)->calm();
  throw std::runtime_error("cannot obey '" + line + "'");
}

}  // namespace
}  // namespace treadle::soak

int main(int argc, char** argv) {
  try {
    treadle::soak::Random random(argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 1);
    static std::map<std::string, std::unique_ptr<treadle::soak::Gate>> gates;  // their threads run to the very end
    for (std::string line; std::getline(std::cin, line);) treadle::soak::obey(line, gates, random);
    std::_Exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "proxy_program: %s\n", error.what());
    std::_Exit(1);
  }
}

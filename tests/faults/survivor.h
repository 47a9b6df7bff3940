#pragma once
// A worker that survives: rank 0 of three, in this process. Rank 1 is the victim, a process that stops at a chosen
// point (victim_program.cc) and is killed there; rank 2 lives on in this process and sends back what it gets. What the
// survivor holds of the system is counted before it meets the victim, and must be the same when that is gone.

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>

#include "tests/faults/victim.h"
#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/places.h"
#include "tests/support/reactor_thread.h"
#include "tests/support/readable.h"
#include "treadle/core/cluster/membership.h"
#include "treadle/core/io/process.h"
#include "treadle/core/io/socket.h"

namespace treadle::test {

enum class Channel { kSocket, kTcpSocket, kLanes, kTcpLanes, kSharedMemory, kOffered };

inline constexpr int kVictim = 1, kOther = 2;  // ranks

// Keeps the messages that came whole, and counts what the victim sent.
class Mailbox final : public cluster::MessageHandler {
 public:
  void onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) override {
    if (before) before();
    if (rank == kVictim) heralded.add();
    auto held = std::make_shared<link::Message>(std::move(message));
    auto whole = [this, rank, from, held](const Status& status) {
      if (!status.ok()) return failed.add();
      if (answer) answer(rank, *from, *held);
      if (keeps) {
        MutexLock lock(mutex_);
        messages_.push_back(std::move(*held));
      }
      (rank == kVictim ? arrived : echoed).add();
    };
    auto arrival = std::move(held->arrival);
    if (!arrival) return whole({});
    arrival->whenWhole(whole);
  }
  void onLost(int rank, const Status& why) override {
    {
      MutexLock lock(mutex_);
      losses_.emplace_back(rank, why);
    }
    lost.add();
  }
  std::vector<link::Message> take() {
    MutexLock lock(mutex_);
    return std::exchange(messages_, {});
  }
  std::vector<std::pair<int, Status>> losses() const {
    MutexLock lock(mutex_);
    return losses_;
  }

  // Set before the first message; on the thread that reads.
  bool keeps = true;
  std::function<void()> before;
  std::function<void(int, link::Connection&, const link::Message&)> answer;
  Counter heralded, arrived, failed;  // begun, whole, never to be whole
  Counter echoed, lost;

 private:
  mutable Mutex mutex_;
  std::vector<link::Message> messages_;
  std::vector<std::pair<int, Status>> losses_;
};

// What a process holds that a lost peer could leave behind.
struct Holdings {
  size_t sockets = 0, memfds = 0, pidfds = 0, mappings = 0;
  size_t usedBytes = 0, lostBytes = 0;
  bool operator==(const Holdings&) const = default;

  static Holdings of(const memory::BlockPool& pool) {
    Holdings held;
    std::error_code gone;  // a descriptor may be closed while it is looked at
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::string what = std::filesystem::read_symlink(entry.path(), gone).string();
      held.sockets += what.starts_with("socket:");
      held.memfds += what.find("memfd:") != std::string::npos;
      held.pidfds += what.find("pidfd") != std::string::npos;
    }
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) held.mappings += line.find("memfd:") != std::string::npos;
    held.usedBytes = pool.counters().usedBytes;
    held.lostBytes = pool.counters().lostBytes;
    return held;
  }
};

inline std::ostream& operator<<(std::ostream& out, const Holdings& held) {
  return out << held.sockets << " sockets, " << held.memfds << " memfds, " << held.pidfds << " pidfds, "
             << held.mappings << " mappings, " << held.usedBytes << " bytes used, " << held.lostBytes << " lost";
}

class Survivor {
 public:
  explicit Survivor(Channel channel, Duration heartbeatTimeout = kHangs)
      : channel_(channel),
        heartbeatTimeout_(heartbeatTimeout),
        pool(valueOrThrow(memory::BlockPool::make(64 * kVictimBytes))),
        otherPool_(valueOrThrow(memory::BlockPool::make(64 * kVictimBytes))),
        self_(*reactor_, {"survivor", 0}, 3, optionsOf(*pool)),
        other_(*otherReactor_, {"other", kOther}, 3, optionsOf(*otherPool_)) {
    self_.setHandler(link::Subject::kRpc, mailbox);
    other_.setHandler(link::Subject::kRpc, echo_);
    echo_.answer = [](int, link::Connection& from, const link::Message& message) {
      EXPECT_TRUE(from.send(message.subject, {}, message.buffers, link::SendMode::kUrgent, kNever).ok());
    };
    self_.setLaneDialer([this](int rank, link::Purpose purpose, TimePoint deadline) -> Result<io::Stream> {
      if (rank == kVictim) return io::Stream(valueOrThrow(io::connectTo(*address_, deadline)));
      auto [mine, others] = sockets();
      TREADLE_RETURN_IF_ERROR(other_.attachLane(0, std::move(others), purpose));
      return io::Stream(std::move(mine));
    });
    echo_.keeps = false;
    attachOther();
    transfer();  // whatever is made for the first one is there from now on
    while (channel == Channel::kSharedMemory && (lentNothing(*pool) || lentNothing(*otherPool_))) transfer();
  }
  ~Survivor() {
    self_.finish();
    other_.finish();
    reactor_.stop();
    otherReactor_.stop();
    self_.close("", Clock::now());
    other_.close("", Clock::now());
  }

  // Starts the victim and connects to it; it goes on to `point`.
  void meet(const std::string& point) {
    before_ = Holdings::of(*pool);
    io::ProcessOptions options;
    options.program = testProgram("faults_victim_program");
    const bool tcp = channel_ == Channel::kTcpSocket || channel_ == Channel::kTcpLanes;
    static int number = 0;
    std::string name = "treadle-victim-" + std::to_string(::getpid()) + "-" + std::to_string(++number);
    options.arguments = {tcp ? "tcp://127.0.0.1:0" : "unix:" + name, point};
    victim_.emplace(valueOrThrow(io::Process::start(options)));
    address_ = valueOrThrow(io::Address::parse(line()));
    for (auto kind : {link::Connection::Kind::kCalls, link::Connection::Kind::kServing})
      throwIfError(self_.attach({"victim", kVictim}, valueOrThrow(io::connectTo(*address_, patience())), kind));
  }
  // From now on silence counts; the victim says nothing by itself.
  void watch() {
    self_.startWatch();
    other_.startWatch();
    if (channel_ == Channel::kSharedMemory) pulseBytes_ = memory::kSmallestBlock;
    before_.usedBytes += pulseBytes_;
  }
  // One more lane of the victim's requests.
  void giveLane() {
    throwIfError(
        self_.attachLane(kVictim, valueOrThrow(io::connectTo(*address_, patience())), link::Purpose::kRequestLane));
  }
  void waitUntilThere() { EXPECT_EQ("there", line()); }

  Status send(int rank, std::span<const Buffer> buffers, link::SendMode mode) {
    auto connection = self_.outgoing(rank);
    if (!connection.ok()) return connection.status();
    (*connection)->awaitAnswer(false);
    return (*connection)->send(link::Subject::kRpc, {}, buffers, mode, patience());
  }

  // Lets the victim read them, once it can.
  std::shared_ptr<link::MemoryOffer> offer(std::span<const Buffer> buffers) {
    std::shared_ptr<link::Connection> connection = valueOrThrow(self_.outgoing(kVictim));
    std::shared_ptr<link::MemoryOffer> offer;
    EXPECT_TRUE(eventually([&] { return (offer = connection->offer(buffers)) != nullptr; }));
    connection->awaitAnswer(false);
    EXPECT_TRUE(
        connection->send(link::Subject::kRpc, {}, buffers, link::SendMode::kStay, patience(), {offer.get()}).ok());
    return offer;
  }

  // Once the victim is lost though its process lives.
  Status loss() {
    expectLoss();
    return mailbox.losses().at(0).second;
  }
  // Returns when the victim's process has ended and the survivor has noticed.
  void kill() {
    endVictim();
    expectLoss();
  }
  void endVictim() {
    victim_->signal(SIGKILL);
    EXPECT_TRUE(test::readable(victim_->endFd(), "the victim's end"));
    EXPECT_TRUE(victim_->takeEnd()->killed);
    victim_.reset();
  }
  void expectLoss() {
    mailbox.lost.waitFor(1);
    auto [rank, why] = mailbox.losses().at(0);
    EXPECT_EQ(kVictim, rank);
    EXPECT_EQ("victim", why.worker());
    EXPECT_TRUE(contains(why.message(), "worker 'victim' (rank 1) was lost"));
  }

  // 4 MB to the other worker and back.
  void transfer() {
    std::vector<std::byte> bytes(4 * kVictimBytes, std::byte{7});
    int before = mailbox.echoed.count();
    ASSERT_TRUE(send(kOther, std::array{Buffer::borrow(bytes.data(), bytes.size())}, link::SendMode::kStay).ok());
    mailbox.echoed.waitFor(before + 1);
    {
      link::Message back = std::move(mailbox.take().back());
      Bytes got = back.buffers.at(0).bytes();
      EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), got.begin(), got.end()));
    }
    EXPECT_TRUE(test::eventuallyReleased([&] { return pool->counters().usedBytes == pulseBytes_; }));
  }

  // After `kill`, with nothing of the victim's held by the test: all is as it was, and goes on.
  void expectNothingLeft() {
    transfer();
    auto isAsBefore = [&] {
      // The pool looks after lost blocks whenever somebody wants a block. The loss may be reported before the pool
      // hears of it, so one look is not enough.
      pool->allocate(kVictimBytes).reset();
      return Holdings::of(*pool) == before_;
    };
    EXPECT_TRUE(test::eventuallyReleased(isAsBefore)) << "before: " << before_ << "\nnow:    " << Holdings::of(*pool);
  }

  Mailbox mailbox;

 private:
  static TimePoint patience() { return deadlineAfter(kHangs); }
  cluster::MembershipOptions optionsOf(memory::BlockPool& pool) {
    cluster::MembershipOptions options{.heartbeatTimeout = heartbeatTimeout_, .connection = {}};
    options.connection.pool = &pool;
    options.connection.threads = &laneThreads_;
    options.connection.offerBytes = channel_ == Channel::kOffered ? 1 : 0;
    options.lendLimitBytes = channel_ == Channel::kSharedMemory ? pool.limitBytes() / 2 : 0;
    options.lanes = channel_ == Channel::kLanes || channel_ == Channel::kTcpLanes;
    return options;
  }
  static bool lentNothing(const memory::BlockPool& pool) { return pool.counters().allocations == 0; }
  static std::pair<io::Fd, io::Fd> sockets() {
    int ends[2];
    EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
    return {io::Fd(ends[0]), io::Fd(ends[1])};
  }
  void attachOther() {
    using Kind = link::Connection::Kind;
    auto [calls, serving] = sockets();
    auto [othersCalls, otherServing] = sockets();
    throwIfError(other_.attach({"survivor", 0}, std::move(serving), Kind::kServing));
    throwIfError(self_.attach({"other", kOther}, std::move(otherServing), Kind::kServing));
    throwIfError(self_.attach({"other", kOther}, std::move(calls), Kind::kCalls));
    throwIfError(other_.attach({"survivor", 0}, std::move(othersCalls), Kind::kCalls));
  }
  // The next line of the victim's output.
  std::string line() { return readLine(victim_->standardOutput().get()); }

  const Channel channel_;
  const Duration heartbeatTimeout_;

 public:
  const std::shared_ptr<memory::BlockPool> pool;

 private:
  const std::shared_ptr<memory::BlockPool> otherPool_;
  Mailbox echo_;
  io::ThreadCache laneThreads_;
  ReactorThread reactor_, otherReactor_;
  cluster::Membership self_, other_;
  std::optional<io::Address> address_;
  std::optional<io::Process> victim_;
  Holdings before_;
  size_t pulseBytes_ = 0;  // of the survivor's own
};

}  // namespace treadle::test

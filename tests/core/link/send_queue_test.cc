// What becomes of a message that its peer takes too slowly.

#include "treadle/core/link/send_queue.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <thread>

#include "tests/core/link/connected_pair.h"
#include "tests/support/sanitizer.h"
#include "tests/support/slow_memory.h"

namespace treadle::link {
namespace {

using namespace std::chrono_literals;

struct Host final : SendQueueHost {
  void wantRoom(bool) override {}
  void wantFlush() override { ++flushes; }
  void wantFlushLater() override {}

  int flushes = 0;
};

// Half of the addresses that a process has, so that there is no room for a copy. All of it is one page of zeros.
class EndlessBytes {
 public:
  EndlessBytes() {
    for (size_t tebibytes : {128, 64}) {
      size_ = tebibytes << 40;
      data_ = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (data_ != MAP_FAILED) return;
    }
  }
  ~EndlessBytes() { ::munmap(data_, size_); }
  bool there() const { return data_ != MAP_FAILED; }
  Buffer buffer() const { return Buffer::borrow(data_, size_); }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

class SlowPeer : public ::testing::Test {
 protected:
  void SetUp() override {
    if (test::kSanitized) GTEST_SKIP() << "a sanitizer ends the program where there is no memory";
    if (!endless_.there()) GTEST_SKIP() << "this process may not have so many addresses";
  }

  Status sendEndless(SendMode mode, TimePoint deadline) {
    return queue_.send(std::vector<std::byte>(10), std::array{endless_.buffer()}, mode, deadline);
  }

  EndlessBytes endless_;
  Sockets sockets_;
  io::Stream stream_{std::move(sockets_.a)};
  Host host_;
  SendQueue queue_{stream_, 1 << 20, 1 << 20, host_};
};

TEST_F(SlowPeer, isLostWhenTheRestOfAMessageCannotBeKeptForIt) {
  const Status sent = sendEndless(SendMode::kStay, deadlineAfter(50ms));
  EXPECT_TRUE(sent.ok()) << "it has begun: " << sent.toString();
  EXPECT_EQ(1, host_.flushes);
  const Status flushed = queue_.flush();
  EXPECT_EQ(Code::kPeerLost, flushed.code());
  EXPECT_NE(std::string::npos, flushed.message().find("no memory")) << flushed.message();
  const Status next = queue_.send(std::vector<std::byte>(10), {}, SendMode::kUrgent, kNever);
  EXPECT_EQ(Code::kPeerLost, next.code()) << "nothing may go into the middle of it";
}

// The queue refuses a whole message of which nothing was written, and goes on.
TEST_F(SlowPeer, keepsItsConnectionWhenAMessageThatHasNotBegunCannotBeKept) {
  // The socket is full, and the queue has the rest.
  ASSERT_TRUE(queue_.send(filled(1 << 19, 1), {}, SendMode::kCapture, kNever).ok());
  ASSERT_GT(queue_.queuedBytes(), 0U);
  const size_t before = queue_.queuedBytes();
  EXPECT_EQ(Code::kResourceExhausted, sendEndless(SendMode::kUrgent, kNever).code());
  EXPECT_EQ(before, queue_.queuedBytes());
  EXPECT_TRUE(queue_.send(std::vector<std::byte>(10), {}, SendMode::kUrgent, kNever).ok());
}

// Reads what the peer is sent; `queue` sends more meanwhile.
std::vector<std::byte> readAll(SendQueue& queue, const io::Fd& peer, size_t size) {
  std::vector<std::byte> got(size);
  for (size_t at = 0; at < size;) {
    EXPECT_TRUE(queue.flush().ok());
    if (!test::readable(peer.get(), "the rest")) break;
    const ssize_t some = ::read(peer.get(), got.data() + at, size - at);
    EXPECT_GT(some, 0);
    if (some <= 0) break;
    at += static_cast<size_t>(some);
  }
  return got;
}

// The rest of a half-sent message is copied when its sender may not wait any longer. Meanwhile other threads queue
// theirs: the heartbeats of all peers go through such a lock, one after the other.
TEST(HalfSentMessage, isCopiedWhileOthersQueueTheirs) {
  constexpr size_t kLarge = 8 << 20, kSmall = 10;
  Sockets sockets;
  io::Stream stream(std::move(sockets.a));
  Host host;
  SendQueue queue(stream, 1 << 20, 1 << 20, host);
  test::SlowMemory slow(kLarge);
  std::thread sender([&] {
    const Status sent = queue.send(filled(kSmall, 2), std::array{slow.buffer()}, SendMode::kStay, deadlineAfter(50ms));
    EXPECT_TRUE(sent.ok()) << "it has begun: " << sent.toString();
  });
  slow.waitForAReader();
  test::Gate isQueued;
  std::thread other([&] {
    EXPECT_TRUE(queue.send(filled(kSmall, 3), {}, SendMode::kUrgent, kNever).ok());
    isQueued.open();
  });
  isQueued.wait();
  slow.letGoOn();
  other.join();
  sender.join();

  const std::vector<std::byte> received = readAll(queue, sockets.b, kSmall + kLarge + kSmall);
  EXPECT_TRUE(allBytesAre(Bytes(received).first(kSmall), 2));
  EXPECT_TRUE(allBytesAre(Bytes(received).subspan(kSmall, kLarge), 4));
  EXPECT_TRUE(allBytesAre(Bytes(received).last(kSmall), 3));
}

// A message waits in a queue whose socket is full. Its copy goes no further than its middle until the test lets it.
class CopyForTheQueue : public ::testing::Test {
 protected:
  static constexpr size_t kFirstBytes = 1 << 19, kSlowBytes = 1 << 18;

  void SetUp() override {
    ASSERT_TRUE(queue_.send(filled(kFirstBytes, 1), {}, SendMode::kCapture, kNever).ok());
    ASSERT_GT(queue_.queuedBytes(), 0U);
    sender_ = std::thread([this] {
      EXPECT_EQ(whyNotSent_, queue_.send(filled(10, 3), std::array{slow_.buffer()}, SendMode::kCapture, kNever).code());
    });
    slow_.waitForAReader();
  }
  void letTheCopyEnd() {
    slow_.letGoOn();
    sender_.join();
  }
  std::vector<std::byte> readAll(size_t size) { return link::readAll(queue_, sockets_.b, size); }

  Sockets sockets_;
  io::Stream stream_{std::move(sockets_.a)};
  Host host_;
  SendQueue queue_{stream_, 1 << 20, 1 << 20, host_};
  test::SlowMemory slow_{kSlowBytes};
  Code whyNotSent_ = Code::kOk;
  std::thread sender_;
};

// A heartbeat first asks how much is queued, and then is an urgent frame.
TEST_F(CopyForTheQueue, doesNotDelayHeartbeats) {
  test::Gate beaten;
  std::thread heart([&] {
    EXPECT_GT(queue_.queuedBytes(), 0U);
    EXPECT_TRUE(queue_.send(filled(10, 2), {}, SendMode::kUrgent, kNever).ok());
    beaten.open();
  });
  beaten.wait();
  letTheCopyEnd();
  heart.join();
  const std::vector<std::byte> got = readAll(kFirstBytes + 20 + kSlowBytes);
  const Bytes bytes = got;
  EXPECT_TRUE(allBytesAre(bytes.first(kFirstBytes), 1));
  EXPECT_TRUE(allBytesAre(bytes.subspan(kFirstBytes, 10), 2));
  EXPECT_TRUE(allBytesAre(bytes.subspan(kFirstBytes + 10, 10), 3));
  EXPECT_TRUE(allBytesAre(bytes.last(kSlowBytes), 4));
}

TEST_F(CopyForTheQueue, countsAgainstItsLimit) {
  const size_t queued = queue_.queuedBytes();
  const Status sent =
      queue_.send(filled((1 << 20) - queued - kSlowBytes, 5), {}, SendMode::kCapture, deadlineAfter(10ms));
  EXPECT_EQ(Code::kDeadlineExceeded, sent.code()) << "with the ten bytes in front of the copy it is too much";
  letTheCopyEnd();
  EXPECT_EQ(queued + 10 + kSlowBytes, queue_.queuedBytes());
}

// The sender writes the message itself when the copy ends.
TEST_F(CopyForTheQueue, isNotNeededWhenTheSocketHasRoomMeanwhile) {
  EXPECT_TRUE(allBytesAre(readAll(kFirstBytes), 1));
  EXPECT_FALSE(queue_.drain(deadlineAfter(10ms))) << "the copy is to be sent too";
  letTheCopyEnd();
  EXPECT_TRUE(test::readable(sockets_.b.get(), "the message"));
  const std::vector<std::byte> got = readAll(10 + kSlowBytes);
  EXPECT_TRUE(allBytesAre(Bytes(got).first(10), 3));
  EXPECT_TRUE(allBytesAre(Bytes(got).last(kSlowBytes), 4));
  EXPECT_TRUE(queue_.drain(test::patience()));
}

TEST_F(CopyForTheQueue, isDroppedWhenTheConnectionEnds) {
  whyNotSent_ = Code::kCancelled;
  queue_.close(cancelled("the test ends it"));
  letTheCopyEnd();
  EXPECT_EQ(0U, queue_.queuedBytes());
}

}  // namespace
}  // namespace treadle::link

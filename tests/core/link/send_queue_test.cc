// What becomes of a message that its peer takes too slowly.

#include "treadle/core/link/send_queue.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/core/link/connected_pair.h"

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

TEST(SlowPeer, isLostWhenTheRestOfAMessageCannotBeKeptForIt) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer ends the program where there is no memory";
#endif
  EndlessBytes endless;
  if (!endless.there()) GTEST_SKIP() << "this process may not have so many addresses";
  Sockets sockets;
  io::Stream stream(std::move(sockets.a));
  Host host;
  SendQueue queue(stream, 1 << 20, 1 << 20, host);
  const Status sent =
      queue.send(std::vector<std::byte>(10), std::array{endless.buffer()}, SendMode::kStay, deadlineAfter(50ms));
  EXPECT_TRUE(sent.ok()) << "it has begun: " << sent.toString();
  EXPECT_EQ(1, host.flushes);
  const Status flushed = queue.flush();
  EXPECT_EQ(Code::kPeerLost, flushed.code());
  EXPECT_NE(std::string::npos, flushed.message().find("no memory")) << flushed.message();
  const Status next = queue.send(std::vector<std::byte>(10), {}, SendMode::kUrgent, kNever);
  EXPECT_EQ(Code::kPeerLost, next.code()) << "nothing may go into the middle of it";
}

// It goes on when it has room again: what had not begun is refused whole.
TEST(SlowPeer, keepsItsConnectionWhenAMessageThatHasNotBegunCannotBeKept) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer ends the program where there is no memory";
#endif
  EndlessBytes endless;
  if (!endless.there()) GTEST_SKIP() << "this process may not have so many addresses";
  Sockets sockets;
  io::Stream stream(std::move(sockets.a));
  Host host;
  SendQueue queue(stream, 1 << 20, 1 << 20, host);
  // The socket is full, and the queue has the rest.
  ASSERT_TRUE(queue.send(filled(1 << 19, 1), {}, SendMode::kCapture, kNever).ok());
  ASSERT_GT(queue.queuedBytes(), 0U);
  const size_t before = queue.queuedBytes();
  const Status sent = queue.send(std::vector<std::byte>(10), std::array{endless.buffer()}, SendMode::kUrgent, kNever);
  EXPECT_EQ(Code::kResourceExhausted, sent.code());
  EXPECT_EQ(before, queue.queuedBytes());
  EXPECT_TRUE(queue.send(std::vector<std::byte>(10), {}, SendMode::kUrgent, kNever).ok());
}

}  // namespace
}  // namespace treadle::link

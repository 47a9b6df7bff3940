// What becomes of a message that its peer takes too slowly.

#include "treadle/core/link/send_queue.h"

#include <gtest/gtest.h>
#include <sys/mman.h>

#include "tests/core/link/connected_pair.h"
#include "tests/support/sanitizer.h"

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

}  // namespace
}  // namespace treadle::link

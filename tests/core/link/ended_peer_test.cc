// A peer that takes no more bytes and then ends its connection: those who send to it hear so at once.

#include <poll.h>

#include "tests/core/link/connected_pair.h"

namespace treadle::link::ended_peer_test {
namespace {

bool takesBytes(int fd) {
  pollfd socket{fd, POLLOUT, 0};
  return ::poll(&socket, 1, 0) > 0;
}

class EndedPeer : public ::testing::TestWithParam<bool> {
 protected:
  // Over TCP, in clear or through TLS. The reading end is held up by its first message.
  EndedPeer() {
    Streams streams = GetParam() ? tlsStreams() : Streams(tcpSockets());
    fd_ = streams.a.fd();
    a_ = std::make_unique<End>(std::move(streams.a), Connection::Kind::kCalls);
    b_ = std::make_unique<End>(std::move(streams.b), Connection::Kind::kServing, ConnectionOptions{},
                               [this](Connection&, const Message&) {
                                 isReading_.open();
                                 mayGoOn_.wait();
                               });
  }
  ~EndedPeer() override { mayGoOn_.open(); }

  Status send(SendMode mode) {
    return (*a_)->send(Subject::kRpc, filled(3, 1), std::array{Buffer::borrow(bytes_.data(), bytes_.size())}, mode,
                       test::patience());
  }
  // Returns when the socket takes no more bytes: the peer has no room for them.
  void fillTheSocket() {
    ASSERT_TRUE((*a_)->send(Subject::kRpc, filled(3, 1), {}, SendMode::kUrgent, test::patience()).ok());
    isReading_.wait();
    ASSERT_TRUE(send(SendMode::kCapture).ok());
    ASSERT_TRUE(test::eventually([&] { return !takesBytes(fd_); }));
  }

  std::vector<std::byte> bytes_{std::vector<std::byte>(size_t{32} << 20)};
  test::Gate isReading_, mayGoOn_;
  int fd_ = -1;
  std::unique_ptr<End> a_, b_;
};

TEST_P(EndedPeer, IsNoticedWhileItsSocketIsFull) {
  fillTheSocket();
  b_->share()->close(cancelled("the test closes it"));
  EXPECT_EQ(Code::kPeerLost, a_->sink.closedWith().code());
  EXPECT_EQ(Code::kPeerLost, send(SendMode::kStay).code());
}

TEST_P(EndedPeer, FailsASenderThatWaits) {
  fillTheSocket();
  std::thread closer([&] { b_->share()->close(cancelled("the test closes it")); });
  Status sent;
  while (sent.ok()) sent = send(SendMode::kStay);
  EXPECT_EQ(Code::kPeerLost, sent.code()) << sent.toString();
  closer.join();
}

INSTANTIATE_TEST_SUITE_P(OverTcp, EndedPeer, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tls" : "Clear"; });

}  // namespace
}  // namespace treadle::link::ended_peer_test

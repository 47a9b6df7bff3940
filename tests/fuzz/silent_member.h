#pragma once
// A membership whose peers say nothing by themselves: what a room above is fed with comes from the fuzzer, and what it
// sends is read from the sockets. One thread; the reactor is not polled.

#include "tests/fuzz/socket_pair.h"
#include "treadle/core/base/error.h"
#include "treadle/core/cluster/membership.h"

namespace treadle::fuzz {

class SilentMember {
 public:
  SilentMember(int self, int worldSize, bool open = false)
      : reactor_(valueOrThrow(io::Reactor::make())),
        membership_(*reactor_, {"w" + std::to_string(self), self}, worldSize, optionsOf(open)) {
    for (int rank = 0; open && rank < worldSize; ++rank) membership_.expect({"w" + std::to_string(rank), rank});
    for (int rank = 0; rank < worldSize; ++rank) {
      auto [ours, theirs] = socketPair();
      throwIfError(
          membership_.attach({"w" + std::to_string(rank), rank}, std::move(ours), link::Connection::Kind::kCalls));
      peers_.emplace_back(std::move(theirs));
    }
    for (int rank = 0; open && rank < worldSize; ++rank) membership_.welcome(rank);
  }
  ~SilentMember() {
    membership_.finish();
    membership_.close("", Clock::now());
  }
  SilentMember(const SilentMember&) = delete;
  SilentMember& operator=(const SilentMember&) = delete;

  cluster::Membership& membership() { return membership_; }
  io::Reactor& reactor() { return *reactor_; }

  // The payloads of the messages that went to `rank` so far.
  std::vector<std::vector<std::byte>> sentTo(int rank) {
    std::vector<std::vector<std::byte>> payloads;
    UniqueFunction<void(link::Frame)> onFrame = [&](link::Frame frame) {
      if (frame.header.kind == wire::FrameKind::kMessage) payloads.push_back(std::move(frame.payload));
    };
    link::FrameReader reader({}, nullptr, true);
    for (Result<bool> more = true; more.ok() && *more;)
      more = reader.readFrom(peers_[static_cast<size_t>(rank)], onFrame);
    return payloads;
  }

  // The connection that a message came on.
  class From final : public link::ConnectionSink {
   public:
    explicit From(SilentMember& member) {
      auto [ours, theirs] = socketPair();
      theirs_ = std::move(theirs);
      connection_ = valueOrThrow(
          link::Connection::start(member.reactor(), std::move(ours), link::Connection::Kind::kServing, {}, *this));
    }
    ~From() override { connection_->close(cancelled("the end")); }
    From(const From&) = delete;
    From& operator=(const From&) = delete;

    const std::shared_ptr<link::Connection>& connection() const { return connection_; }
    bool closed() const { return closed_; }

   private:
    void onMessage(link::Connection&, link::Message) override {}
    void onLeave(link::Connection&, std::string) override {}
    void onClosed(link::Connection&, const Status&) override { closed_ = true; }

    io::Fd theirs_;
    std::shared_ptr<link::Connection> connection_;
    bool closed_ = false;
  };

 private:
  static cluster::MembershipOptions optionsOf(bool open) {
    cluster::MembershipOptions options;
    options.open = open;
    return options;
  }

  std::unique_ptr<io::Reactor> reactor_;
  cluster::Membership membership_;
  std::vector<io::Stream> peers_;
};

}  // namespace treadle::fuzz

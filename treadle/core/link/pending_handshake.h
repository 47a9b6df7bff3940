#pragma once
// A connection that was accepted and has not passed yet: a small state machine on the reactor's thread, so that slow
// strangers hold no thread. It ends by being handed over, or dropped with a sentence to the other side.

#include "treadle/core/link/handshake_messages.h"

namespace treadle::link {

class PendingHandshake;

// Whoever listens, and keeps the connections that shake hands by their descriptors. On the reactor's thread.
class HandshakeHost {
 public:
  virtual ~HandshakeHost() = default;

  virtual const Credentials& credentials() const = 0;
  virtual io::Reactor& reactor() = 0;
  virtual Duration timeout() const = 0;
  virtual uint16_t port() const = 0;
  // Whether a peer that proved to know the key is wanted.
  virtual Status check(const Hello& hello) = 0;
  // It has passed.
  virtual void hand(int fd, Hello hello) = 0;
  // It is of no use any more.
  virtual void drop(int fd) = 0;
  // For the log.
  virtual void refused(const std::string& source, const std::string& why) = 0;
  // It has waited as long as it had to.
  virtual void turnOf(PendingHandshake& pending) = 0;
};

class PendingHandshake final : public io::EventHandler, public std::enable_shared_from_this<PendingHandshake> {
 public:
  PendingHandshake(std::shared_ptr<HandshakeHost> host, io::Stream stream, std::string source);

  // `wait`: it is listened to that much later.
  Status begin(Duration wait);
  Status listen() { return host_->reactor().add(fd_, EPOLLIN, shared_from_this()); }
  void stop();
  // For others, as the host has let go of it.
  void giveWay();
  io::Stream release() { return std::move(stream_); }

  int fd() const { return fd_; }
  const std::string& source() const { return source_; }
  TimePoint since() const { return since_; }

  void onEvents(uint32_t) override;

 private:
  Status onFrame(const Frame& frame);
  Status onHello(const Incoming& incoming);
  Status onProof(const Incoming& incoming);
  Status say(Bytes message);
  void fail(const Status& why);
  void discardInput() const;

  const std::shared_ptr<HandshakeHost> host_;  // a cycle until the connection is handed over or dropped
  io::Stream stream_;
  const int fd_;
  const std::string source_;
  const TimePoint since_ = Clock::now();
  std::string key_;  // of the proofs
  bool secure_;      // the handshake of TLS is done, if there is one
  bool heard_ = false;
  FrameReader reader_;
  UniqueFunction<void(Frame)> onFrame_;
  io::Reactor::TimerId timer_ = 0, turn_ = 0;
  Hello peer_;
  std::vector<std::byte> hello_, challenge_;
  Status status_;
  bool done_ = false;
};

}  // namespace treadle::link

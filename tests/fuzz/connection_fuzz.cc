// A connection that serves a peer of this host (link/connection.h), with all that such a peer may send it: messages
// with buffers in every place, heartbeats and pulses, its arena, releases, tables of offers, pieces on lanes, and bytes
// that are none of these. The peer is written by the fuzzer; its memory is this process's own.

#include <sys/socket.h>

#include "tests/fuzz/silent_member.h"
#include "treadle/core/memory/block_pool.h"
#include "treadle/core/wire/writer.h"

namespace treadle::fuzz::connection_fuzz {
namespace {

using Kind = wire::FrameKind;

constexpr size_t kArenaBytes = 1 << 20;
constexpr size_t kMostPieces = 64, kMostInline = 300;

// Kept from input to input: address space and threads cost more than all the rest.
struct Machine {
  std::shared_ptr<memory::BlockPool> ours = valueOrThrow(memory::BlockPool::make(kArenaBytes));
  std::shared_ptr<memory::BlockPool> theirs = valueOrThrow(memory::BlockPool::make(kArenaBytes));
  io::ThreadCache threads;

  static Machine& get() {
    static Machine machine;
    return machine;
  }
};

class Sink final : public link::ConnectionSink {
 public:
  void onMessage(link::Connection&, link::Message message) override {
    promise(message.subject >= link::Subject::kCluster && message.subject <= link::Subject::kSummation,
            "a known subject");
    if (!message.arrival) return keep(message.buffers);
    auto buffers = std::make_shared<std::vector<Buffer>>(std::move(message.buffers));
    message.arrival->whenWhole([this, buffers](const Status& whole) {
      if (whole.ok()) keep(*buffers);
    });
  }
  void onLeave(link::Connection&, std::string reason) override {
    promise(reason.size() <= link::Connection::kReasonBytes, "a reason is as long as is stated");
  }
  void onClosed(link::Connection&, const Status& why) override {
    promise(!why.ok() && closed_++ == 0, "a connection is closed once, with a reason");
  }

  bool closed() const { return closed_ > 0; }
  // Every second one is kept for a while, the others go back at once.
  void keep(const std::vector<Buffer>& buffers) {
    MutexLock lock(mutex_);
    for (const Buffer& buffer : buffers) {
      for (std::byte byte : buffer.bytes()) sum_ += static_cast<unsigned>(byte);  // all of it is there to be read
      if (++seen_ % 2 == 0) kept_.push_back(buffer);
    }
  }
  void letGo() {
    MutexLock lock(mutex_);
    kept_.clear();
  }

 private:
  std::atomic<int> closed_ = 0;
  Mutex mutex_;
  std::vector<Buffer> kept_ TREADLE_GUARDED_BY(mutex_);
  unsigned sum_ TREADLE_GUARDED_BY(mutex_) = 0;
  size_t seen_ TREADLE_GUARDED_BY(mutex_) = 0;
};

class Peer {
 public:
  explicit Peer(Bytes input) : choices_(input), sockets_(socketPair()) {
    Machine& machine = Machine::get();
    link::ConnectionOptions options;
    options.limits = {.payloadBytes = 1 << 16, .bufferBytes = 1 << 20, .buffers = 16};
    options.maxQueuedBytes = 1 << 20;
    options.requestBytes = 1 << 20;
    options.pool = machine.ours.get();
    options.threads = &machine.threads;
    options.offerBytes = 1 << 12;
    memory_ = std::make_shared<link::PeerMemory>(machine.ours.get(), kArenaBytes / 2);
    connection_ = valueOrThrow(link::Connection::start(*reactor_, std::move(sockets_.first),
                                                       link::Connection::Kind::kServing, options, sink_, memory_));
  }
  ~Peer() {
    connection_->close(cancelled("the end"));
    connection_->awaitReader();
    promise(sink_.closed(), "who closes a connection hears of it");
    sink_.letGo();
    memory_->close();
  }
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  void play() {
    for (size_t i = 0; i < kMostPieces && choices_.any() && !sink_.closed(); ++i) {
      act();
      poll();
    }
    sockets_.second.reset();
    lanes_.clear();
    while (!sink_.closed()) reactor_->poll();
  }

 private:
  // Whatever came is read before the next is sent.
  void poll() {
    for (int i = 0; i < 2; ++i) {
      bool polled = false;
      reactor_->at(Clock::now(), [&] { polled = true; });
      while (!polled) reactor_->poll();
    }
  }

  void act() {
    switch (choices_.below(14)) {
      case 0: return write(choices_.bytes(choices_.below(64)));
      case 1: return writeFrame(Kind{static_cast<uint8_t>(1 + choices_.below(11))}, choices_.bytes(choices_.below(64)));
      case 2: return writeFrame(Kind::kArena, {}, choices_.below(4) == 0 ? sockets_.second.get() : theirArena());
      case 3: return writeNumbers(Kind::kHeartbeat, {place()});
      case 4: return writeNumbers(Kind::kRelease, {place(), place()});
      case 5: return writeNumbers(Kind::kTable, {address(), choices_.number<uint8_t>()});
      case 6: return writeFrame(Kind::kLeave, reason());
      case 7: return lend();
      case 8: return addLane();
      case 9:
      case 10: return writePiece();
      case 11: return sink_.letGo();
      default: return writeMessage();
    }
  }

  uint64_t place() { return choices_.below(4) == 3 ? choices_.number<uint64_t>() : 64 * choices_.below(64); }
  // Something of this process that may be read, or any number.
  uint64_t address() {
    return choices_.below(2) == 0 ? reinterpret_cast<uint64_t>(Machine::get().theirs->arena().bytes().data())
                                  : choices_.number<uint64_t>();
  }
  int theirArena() { return Machine::get().theirs->arena().fd(); }
  Bytes reason() {
    wire::Writer writer;
    writer.string(choices_.text(choices_.below(40)));
    reason_ = writer.take();
    return reason_;
  }

  void write(Bytes bytes, int descriptor = -1) {
    iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<std::byte, CMSG_SPACE(sizeof(int))> control{};
    if (descriptor >= 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof(int));
      std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
    }
    (void)::sendmsg(sockets_.second.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
  void writeFrame(Kind kind, Bytes payload, int descriptor = -1) {
    write(wire::frameFront(kind, 0, payload), descriptor);
  }
  void writeNumbers(Kind kind, const std::vector<uint64_t>& numbers) {
    writeFrame(kind, std::as_bytes(std::span(numbers)));
  }
  void writeMessage() {
    std::vector<wire::BufferEntry> entries;
    std::vector<std::byte> inlined;
    for (size_t left = choices_.below(4); left > 0; --left) {
      wire::BufferEntry entry{choices_.number<uint16_t>(), wire::Place{static_cast<uint8_t>(choices_.below(5))}, 0};
      if (entry.place == wire::Place::kInline) {
        entry.sizeBytes %= kMostInline;
        inlined.resize(inlined.size() + entry.sizeBytes);
      } else {
        entry.at =
            entry.place == wire::Place::kLent || entry.place == wire::Place::kReturned ? place() : choices_.below(5);
      }
      entries.push_back(entry);
    }
    auto subject = static_cast<uint8_t>(choices_.below(5));
    write(joined({wire::frameFront(Kind::kMessage, subject, choices_.bytes(choices_.below(64)), entries), inlined}));
  }
  // This side sends a large buffer, which may be lent to the peer: then the peer may give it back.
  void lend() {
    Buffer buffer = allocateBuffer(32 << 10);
    std::fill_n(buffer.data, buffer.sizeBytes, std::byte{1});
    memory_->setMapped(io::ProcessHandle::ofPeer(sockets_.second.get()));
    connection_->send(link::Subject::kRpc, {}, std::span(&buffer, 1), link::SendMode::kUrgent, kNever).ignore();
  }
  void addLane() {
    if (lanes_.size() >= 3) return;
    auto [ours, theirs] = socketPair();
    if (connection_->addLane(std::move(ours)).ok()) lanes_.push_back(std::move(theirs));
  }
  void writePiece() {
    if (lanes_.empty()) return;
    wire::Piece piece{choices_.below(5), choices_.number<uint16_t>(), choices_.number<uint16_t>(),
                      choices_.number<uint16_t>() % 4096U};
    std::vector<std::byte> frame = wire::pieceFront(piece);
    frame.resize(frame.size() + piece.sizeBytes);
    const io::Fd& lane = lanes_[choices_.below(lanes_.size())];
    (void)::send(lane.get(), frame.data(), frame.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  Choices choices_;
  std::unique_ptr<io::Reactor> reactor_ = valueOrThrow(io::Reactor::make());
  std::pair<io::Fd, io::Fd> sockets_;
  std::vector<io::Fd> lanes_;
  std::vector<std::byte> reason_;
  Sink sink_;
  std::shared_ptr<link::PeerMemory> memory_;
  std::shared_ptr<link::Connection> connection_;
};

void feed(Bytes input) { Peer(input).play(); }

Inputs seeds() {
  return {row({13, 1, 0x20, 0, 0, 2, 4, 1, 2, 3, 4}),                       // a message with a buffer inline
          row({2, 1, 3, 0, 0, 13, 1, 0, 16, 1, 0, 1, 2, 0, 11}),            // the arena, a pulse, a lent buffer
          row({2, 1, 13, 1, 0, 16, 1, 0, 1, 2, 0, 13, 1, 0, 16, 1, 0, 1}),  // the same memory twice
          row({7, 4, 0, 0, 0, 1}),                                          // a block is lent and released
          row({7, 13, 1, 0, 16, 2, 0, 0, 2, 0}),                            // it is returned
          row({8, 13, 1, 0, 16, 3, 1, 2, 0, 9, 1, 0, 0, 0, 16, 0, 16, 0}),  // a lane: announced, then a piece
          row({5, 0, 0, 13, 1, 0, 32, 4, 1, 2, 0}),                         // a table, an offered buffer
          row({3, 3, 1, 2, 3}),
          row({6, 5, 'w', 'h', 'y'}),
          row({0, 20, 1, 2, 3}),
          row({1, 2, 0}),
          row({2, 0, 2, 1})};
}

const Fuzzer kConnection("connection", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::connection_fuzz

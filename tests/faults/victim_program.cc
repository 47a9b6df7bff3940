// A peer that gets as far as it is told and stops there until the test kills it: victim_program ADDRESS POINT. Listens
// at the address, which it prints; takes two connections, first the one on which it is asked, then the one on which it
// asks, and whatever lanes it needs. Says "there" when it has come to the point.

#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <thread>

#include "tests/faults/victim.h"
#include "tests/support/stream_on.h"
#include "treadle/core/base/error.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/link/frame_reader.h"
#include "treadle/core/link/message.h"
#include "treadle/core/link/offered_memory.h"
#include "treadle/core/wire/crc32c.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace {

using namespace treadle;
using test::kVictimBytes;
using wire::BufferEntry;
using wire::FrameKind;
using wire::Place;

constexpr size_t kPieceBytes = 256U << 10;

class Victim {
 public:
  explicit Victim(const char* address) {
    listener_ = valueOrThrow(io::listenOn(valueOrThrow(io::Address::parse(address))));
    std::cout << valueOrThrow(io::Address::ofSocket(listener_.get())).toString() << std::endl;
    asked_ = accept();
    asks_ = accept();
  }

  // ---- bytes on sockets

  void takesNothing() {}
  void takesTheFront() { front(asked_); }
  void takesHalfABuffer() {
    BufferEntry entry = front(asked_).at(0);
    std::vector<std::byte> bytes(entry.sizeBytes / 2);
    throwIfError(io::readAll(asked_.get(), bytes, kNever));
  }
  void sendsHalfABuffer() {
    write(asks_, message({kVictimBytes, Place::kInline, 0}));
    write(asks_, std::vector<std::byte>(kVictimBytes / 2));
  }
  void sendsHalfAFront() {
    std::vector<std::byte> front = message({kVictimBytes, Place::kInline, 0});
    write(asks_, Bytes(front).first(front.size() / 2));
  }

  // ---- lanes

  void sendsHalfAPiece() {
    write(asks_, message({kVictimBytes, Place::kOnLanes, 1}));
    sendsAPieceOfNoMessage();
    write(lane_, wire::pieceFront({1, kPieceBytes, kVictimBytes, kPieceBytes}));
    write(lane_, std::vector<std::byte>(kPieceBytes / 2));
  }
  void takesHalfAPiece() {
    lane_ = accept();
    std::vector<std::byte> bytes(wire::kHeaderBytes);
    throwIfError(io::readAll(lane_.get(), bytes, kNever));
    wire::FrameHeader header = valueOrThrow(wire::parseHeader(bytes, {}));
    bytes.resize(header.frontBytes() - bytes.size() + header.bufferBytes / 2);
    throwIfError(io::readAll(lane_.get(), bytes, kNever));
  }
  // It takes the connection for the lane, and says nothing more.
  void takesALane() { lane_ = accept(); }
  void sendsHalfAPiecesFront() {
    write(asks_, message({kVictimBytes, Place::kOnLanes, 1}));
    lane_ = accept();
    std::vector<std::byte> front = wire::pieceFront({1, 0, kVictimBytes, kPieceBytes});
    write(lane_, Bytes(front).first(front.size() / 2));
  }
  void sendsAPieceOfNoMessage() {
    lane_ = accept();
    std::vector<std::byte> bytes(kPieceBytes);
    write(lane_, wire::pieceFront({1, 0, kVictimBytes, kPieceBytes, wire::crc32c(bytes)}));
    write(lane_, bytes);
  }

  // ---- memory of the survivor

  void takesTheArena() { takeArena(); }
  void mapsTheArena() {
    arena_.emplace(valueOrThrow(io::SharedMemory::adopt(takeArena())));
    saysYes(FrameKind::kMapped);
  }
  void holdsABlock() {
    mapsTheArena();
    // What was sent before the survivor knew that it may lend comes by itself.
    while (lent_ = front(asked_).at(0), lent_.place == Place::kInline) {
      std::vector<std::byte> bytes(lent_.sizeBytes);
      throwIfError(io::readAll(asked_.get(), bytes, kNever));
    }
    std::memset(arena_->bytes().data() + lent_.at, 9, lent_.sizeBytes);
  }
  void returnsHalf() {
    holdsABlock();
    std::vector<std::byte> front = message({lent_.sizeBytes, Place::kReturned, lent_.at});
    write(asked_, Bytes(front).first(front.size() / 2));
  }
  void returns() {
    holdsABlock();
    write(asked_, message({lent_.sizeBytes, Place::kReturned, lent_.at}));
  }
  void releasesHalf() {
    holdsABlock();
    std::vector<std::byte> front = wire::frameFront(FrameKind::kRelease, 0, std::as_bytes(std::span(&lent_.at, 1)));
    write(asked_, Bytes(front).first(front.size() - 1));
  }

  // ---- memory of its own

  void offersItsArena() { offerArenaOf(4 * kVictimBytes); }
  // Messages of a block each, from an arena that has more of them than it lends.
  void lendsManyBlocks() {
    offerArenaOf(2 * test::kVictimBlocks * kVictimBytes);
    for (int i = 0; i < test::kVictimBlocks; ++i) {
      blocks_.push_back(pool_->allocate(kVictimBytes));
      blocks_.back()->fill(std::vector<std::byte>(kVictimBytes, static_cast<std::byte>(i)));
      if (i % 2 == 0) write(asks_, message({kVictimBytes, Place::kLent, blocks_.back()->offset()}));
    }
  }
  void lendsABlock() {
    offersItsArena();
    block_ = pool_->allocate(kVictimBytes);
    block_->fill(std::vector<std::byte>(kVictimBytes, std::byte{5}));
    write(asks_, message({kVictimBytes, Place::kLent, block_->offset()}));
  }

  // ---- memory of its own that the survivor reads

  void tellsItsTable() {
    wire::Writer place;
    place.number(table_->address());
    place.number(table_->mark());
    write(asks_, wire::frameFront(FrameKind::kTable, 0, place.bytes()));
    front(asks_);  // it can be read
  }
  void offersABuffer() {
    tellsItsTable();
    buffer_ = {allocateBuffer(test::kOfferedBytes)};
    std::fill_n(buffer_[0].data, test::kOfferedBytes, std::byte{6});
    offer_.emplace(table_, buffer_, 1);
    write(asks_, message({test::kOfferedBytes, Place::kOffered, offer_->number(0)}));
  }

  // ---- memory of the survivor that it reads

  void takesTheTable() {
    io::Stream asked = test::streamOn(asked_.get());
    link::Frame table = valueOrThrow(link::readOneFrame(asked, {}, kNever));
    wire::Reader reader(table.payload);
    auto address = reader.number<uint64_t>(), mark = reader.number<uint64_t>();
    reader_ = valueOrThrow(link::OfferReader::make(asked_.get(), address, mark, nullptr, 2 * test::kOfferedBytes));
  }
  void answersTheTable() {
    takesTheTable();
    saysYes(FrameKind::kReadable);
  }
  void takesAnOffer() {
    answersTheTable();
    while (offered_.empty() || offered_[0].place != Place::kOffered) offered_ = front(asked_);
  }
  // Until it is killed.
  void readsAnOffer() {
    takesAnOffer();
    std::vector<Buffer> buffers(1);
    link::OfferReader::Reading reading = valueOrThrow(reader_->announce(offered_, buffers));
    throwIfError(reader_->read(reading));
    std::thread([this, reading] {
      while (reader_->read(reading).ok()) {}
    }).detach();
  }

 private:
  void offerArenaOf(size_t limitBytes) {
    pool_ = valueOrThrow(memory::BlockPool::make(limitBytes));
    test::sendWithDescriptor(asks_, wire::frameFront(FrameKind::kArena, 0, {}), pool_->arena().fd());
    front(asks_);  // mapped
  }
  io::Fd accept() {
    io::waitFor(listener_.get(), POLLIN, kNever);
    return valueOrThrow(io::acceptFrom(listener_.get()));
  }
  static void write(const io::Fd& to, Bytes bytes) { throwIfError(io::writeAll(to.get(), bytes, kNever)); }
  // To what the survivor offers: no reason why not.
  void saysYes(FrameKind kind) const {
    wire::Writer noReason;
    noReason.string("");
    write(asked_, wire::frameFront(kind, 0, noReason.bytes()));
  }
  static std::vector<std::byte> message(const BufferEntry& entry) {
    return wire::frameFront(FrameKind::kMessage, static_cast<uint8_t>(link::Subject::kRpc), {}, std::array{entry});
  }

  // The entries of the next frame that is no notice, of which it reads nothing more.
  static std::vector<BufferEntry> front(const io::Fd& from) {
    std::vector<std::byte> bytes(wire::kHeaderBytes);
    throwIfError(io::readAll(from.get(), bytes, kNever));
    wire::FrameHeader header = valueOrThrow(wire::parseHeader(bytes, {}));
    bytes.resize(header.frontBytes());
    throwIfError(io::readAll(from.get(), MutableBytes(bytes).subspan(wire::kHeaderBytes), kNever));
    auto entries = valueOrThrow(wire::parseFront(header, bytes));
    return header.kind == FrameKind::kComing ? front(from) : entries;
  }
  io::Fd takeArena() {
    link::FrameReader reader({}, nullptr, true);
    io::Fd descriptor;
    UniqueFunction<void(link::Frame)> onFrame = [&](link::Frame frame) { descriptor = std::move(frame.descriptor); };
    io::Stream asked = test::streamOn(asked_.get());
    while (!descriptor.valid()) {
      io::waitFor(asked_.get(), POLLIN, kNever);
      valueOrThrow(reader.readFrom(asked, onFrame));
    }
    return descriptor;
  }
  io::Fd listener_, asked_, asks_, lane_;
  std::optional<io::SharedMemory> arena_;  // the survivor's
  BufferEntry lent_;
  std::shared_ptr<memory::BlockPool> pool_;
  std::shared_ptr<memory::Block> block_;
  std::vector<std::shared_ptr<memory::Block>> blocks_;
  const std::shared_ptr<link::OfferTable> table_ = std::make_shared<link::OfferTable>();
  std::vector<Buffer> buffer_;
  std::optional<link::MemoryOffer> offer_;
  std::shared_ptr<link::OfferReader> reader_;
  std::vector<BufferEntry> offered_;
};

using Point = void (Victim::*)();
const std::map<std::string, Point> kPoints = {{"takesNothing", &Victim::takesNothing},
                                              {"takesTheFront", &Victim::takesTheFront},
                                              {"takesHalfABuffer", &Victim::takesHalfABuffer},
                                              {"takesHalfAPiece", &Victim::takesHalfAPiece},
                                              {"takesALane", &Victim::takesALane},
                                              {"sendsHalfAPiecesFront", &Victim::sendsHalfAPiecesFront},
                                              {"sendsHalfABuffer", &Victim::sendsHalfABuffer},
                                              {"sendsHalfAFront", &Victim::sendsHalfAFront},
                                              {"sendsHalfAPiece", &Victim::sendsHalfAPiece},
                                              {"sendsAPieceOfNoMessage", &Victim::sendsAPieceOfNoMessage},
                                              {"takesTheArena", &Victim::takesTheArena},
                                              {"mapsTheArena", &Victim::mapsTheArena},
                                              {"holdsABlock", &Victim::holdsABlock},
                                              {"returnsHalf", &Victim::returnsHalf},
                                              {"returns", &Victim::returns},
                                              {"releasesHalf", &Victim::releasesHalf},
                                              {"offersItsArena", &Victim::offersItsArena},
                                              {"lendsABlock", &Victim::lendsABlock},
                                              {"lendsManyBlocks", &Victim::lendsManyBlocks},
                                              {"takesTheTable", &Victim::takesTheTable},
                                              {"answersTheTable", &Victim::answersTheTable},
                                              {"takesAnOffer", &Victim::takesAnOffer},
                                              {"readsAnOffer", &Victim::readsAnOffer},
                                              {"tellsItsTable", &Victim::tellsItsTable},
                                              {"offersABuffer", &Victim::offersABuffer}};

}  // namespace

int main(int, char** arguments) try {
  Victim victim(arguments[1]);
  (victim.*kPoints.at(arguments[2]))();
  std::cout << "there" << std::endl;
  for (;;) ::pause();
} catch (const std::exception& error) {
  std::cerr << "victim: " << error.what() << std::endl;
  return 1;
}

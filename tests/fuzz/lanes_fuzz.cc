// Pieces of large buffers as they come on a lane, and the messages that announce them (link/lane_reader.h,
// link/lane_receiver.h). Every byte has a value that follows from its place, so that one in a wrong place is seen.

#include <unistd.h>

#include "tests/fuzz/socket_pair.h"
#include "treadle/core/link/lane_reader.h"

namespace treadle::fuzz::lanes_fuzz {
namespace {

constexpr uint64_t kLimitBytes = 1 << 16;
constexpr wire::FrameLimits kLimits{.payloadBytes = 1 << 10, .bufferBytes = kLimitBytes, .buffers = 16};
constexpr size_t kMostPiece = 4096;

std::byte valueAt(uint64_t number, uint64_t offset) { return static_cast<std::byte>(number * 31 + offset * 7); }

struct Announced {
  std::vector<wire::BufferEntry> entries;
  std::vector<Buffer> buffers;
  bool whole = false;

  void check() const {
    for (size_t i = 0; i < entries.size(); ++i) {
      promise(buffers[i].sizeBytes == entries[i].sizeBytes, "a buffer has the size that was announced");
      for (size_t at = 0; at < buffers[i].sizeBytes; ++at)
        promise(buffers[i].data[at] == valueAt(entries[i].at, at), "each byte of a whole buffer is in its place");
    }
  }
};

class Lane {
 public:
  Lane() {
    auto [from, to] = socketPair();
    from_ = std::move(from);
    to_ = std::move(to);
  }

  bool write(Bytes bytes) {
    promise(::write(from_.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "it fits");
    for (;;) {
      Result<link::LaneReader::Progress> progress = reader_.readFrom(to_);
      if (!progress.ok()) return false;
      if (progress->bytes == 0) return true;
    }
  }
  bool piece(Choices& choices) {
    wire::Piece piece{choices.below(5), choices.number<uint16_t>(), choices.number<uint16_t>(),
                      choices.number<uint16_t>() % kMostPiece};
    if (choices.below(8) == 7) piece.offsetBytes = choices.number<uint64_t>();
    if (choices.below(8) == 7) piece.totalBytes = choices.number<uint64_t>();
    std::vector<std::byte> frame = wire::pieceFront(piece);
    for (uint64_t i = 0; i < piece.sizeBytes; ++i) frame.push_back(valueAt(piece.number, piece.offsetBytes + i));
    return write(frame);
  }
  bool announce(Choices& choices) {
    auto announced = std::make_shared<Announced>();
    for (size_t left = 1 + choices.below(3); left > 0; --left)
      announced->entries.push_back({choices.number<uint16_t>(), wire::Place::kOnLanes, choices.below(5)});
    announced->buffers.resize(announced->entries.size());
    auto arrival = receiver_.announce(announced->entries, announced->buffers);
    if (!arrival.ok()) return false;
    if (!*arrival) return announced->check(), true;
    (*arrival)->whenWhole([announced](const Status& whole) {
      promise(!std::exchange(announced->whole, true), "an arrival is told once");
      if (whole.ok()) announced->check();
    });
    announced_.push_back(std::move(announced));
    return true;
  }
  void close() {
    receiver_.clear(cancelled("the end"));
    for (const auto& one : announced_) promise(one->whole, "who waits for a buffer hears of the end");
  }

 private:
  io::Fd from_;
  io::Stream to_;
  link::LaneReceiver receiver_{nullptr, kLimitBytes};
  link::LaneReader reader_{receiver_, kLimits};
  std::vector<std::shared_ptr<Announced>> announced_;
};

void feed(Bytes input) {
  Choices choices(input);
  Lane lane;
  for (bool goes = true; goes && choices.any();) {
    switch (choices.below(5)) {
      case 0: goes = lane.write(choices.bytes(choices.below(100))); break;
      case 1: goes = lane.announce(choices); break;
      default: goes = lane.piece(choices);
    }
  }
  lane.close();
}

std::vector<std::byte> pieceChoice(uint8_t number, uint16_t offset, uint16_t total, uint16_t size) {
  std::vector<std::byte> bytes = {std::byte{2}, std::byte{number}};
  for (uint16_t each : {offset, total, size})
    for (int shift : {0, 8}) bytes.push_back(static_cast<std::byte>(each >> shift));
  bytes.resize(bytes.size() + 2);
  return bytes;
}

std::vector<std::byte> announcement(uint8_t number, uint16_t size) {
  return {std::byte{1}, std::byte{0}, static_cast<std::byte>(size), static_cast<std::byte>(size >> 8),
          std::byte{number}};
}

Inputs seeds() {
  return {joined({announcement(1, 3000), pieceChoice(1, 0, 3000, 1000), pieceChoice(1, 2000, 3000, 1000),
                  pieceChoice(1, 1000, 3000, 1000)}),
          joined({pieceChoice(2, 0, 500, 500), announcement(2, 500)}),
          joined({pieceChoice(2, 0, 500, 100), pieceChoice(3, 0, 100, 100), announcement(3, 100), announcement(2, 500),
                  pieceChoice(2, 100, 500, 400)}),
          joined({announcement(1, 60'000), announcement(2, 60'000)})};
}

const Fuzzer kLanes("lanes", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::lanes_fuzz

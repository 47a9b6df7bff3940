// A stream of frames cut into pieces (link/frame_reader.h). An input is a row of frames, some of them with bytes that
// were changed, and the sizes of the pieces that the stream comes in; it is read in these pieces and in one.

#include <unistd.h>

#include "tests/fuzz/socket_pair.h"
#include "treadle/core/base/error.h"
#include "treadle/core/link/frame_reader.h"

namespace treadle::fuzz::frame_reader_fuzz {
namespace {

constexpr wire::FrameLimits kLimits{.payloadBytes = 1 << 16, .bufferBytes = 1 << 18, .buffers = 16};
constexpr size_t kMostBytes = 60'000;  // of a stream: fits into a socket at once

using Stream = std::vector<std::byte>;

Stream frameFrom(Choices& choices) {
  std::vector<wire::BufferEntry> entries;
  Stream buffers;
  for (size_t left = choices.below(4); left > 0; --left) {
    wire::Place place{static_cast<uint8_t>(choices.below(wire::kPlaces))};
    entries.push_back({choices.number<uint16_t>(), place, 0});
    if (place == wire::Place::kInline) buffers.resize(buffers.size() + entries.back().sizeBytes, std::byte{0x55});
  }
  wire::FrameKind kind{static_cast<uint8_t>(1 + choices.below(11))};
  Bytes payload = choices.bytes(choices.below(64));
  Stream frame = joined({wire::frameFront(kind, choices.number<uint8_t>(), payload, entries), buffers});
  if (choices.below(8) == 7) frame[choices.number<uint16_t>() % frame.size()] ^= choices.number<std::byte>();
  return frame;
}

struct Read {
  std::vector<Stream> frames;  // what was read of each, written one after the other
  Status end;

  void keep(const link::Frame& frame) {
    promise(frame.buffers.size() == frame.entries.size(), "each entry has its buffer");
    Stream text = wire::frameFront(frame.header.kind, frame.header.subject, frame.payload, frame.entries);
    for (const Buffer& buffer : frame.buffers) text.insert(text.end(), buffer.data, buffer.data + buffer.sizeBytes);
    frames.push_back(std::move(text));
  }
};

class Socket {
 public:
  Socket() {
    auto [from, to] = socketPair();
    from_ = std::move(from);
    to_ = std::move(to);
  }
  // False when the reader has given the stream up.
  bool write(Bytes bytes) {
    promise(::write(from_.get(), bytes.data(), bytes.size()) == static_cast<ssize_t>(bytes.size()), "it fits");
    Result<bool> got = true;
    while (got.ok() && *got) got = reader_.readFrom(to_, onFrame_);
    read_.end = got.status();
    return got.ok();
  }
  const Read& read() const { return read_; }

 private:
  io::Fd from_;
  io::Stream to_;
  link::FrameReader reader_{kLimits, nullptr, true};
  Read read_;
  UniqueFunction<void(link::Frame)> onFrame_ = [this](const link::Frame& frame) { read_.keep(frame); };
};

void feed(Bytes input) {
  Choices choices(input);
  const size_t frames = 1 + choices.below(6);
  Choices pieces(choices.bytes(choices.below(32)));
  Stream stream;
  for (size_t i = 0; i < frames; ++i) {
    Stream next = frameFrom(choices);
    stream.insert(stream.end(), next.begin(), next.end());
  }
  Bytes raw = choices.rest();
  stream.insert(stream.end(), raw.begin(), raw.end());
  stream.resize(std::min(stream.size(), kMostBytes));
  Socket whole, inPieces;
  whole.write(stream);
  Bytes left = stream;
  for (bool goes = true; goes && !left.empty();) {
    size_t size = pieces.any() ? std::min<size_t>(1 + pieces.number<uint16_t>() % 3000, left.size()) : left.size();
    goes = inPieces.write(left.first(size));
    left = left.subspan(size);
  }
  promise(whole.read().frames == inPieces.read().frames, "the frames are the same however the stream is cut");
  promise(whole.read().end.toString() == inPieces.read().end.toString(), "and so is their end");
}

Inputs seeds() {
  return {joined({{std::byte{0}, std::byte{0}, std::byte{0}, std::byte{1}}, bytesOf("\x07payload")}),
          bytesOf("\x02\x04\x03\x00\x01\x00\x02\x00\x10\x20\x01\x40\x01\x05hello\x02"),
          bytesOf("\x05\x02\x01\x00\x01\x00\xff\xff\x01\x09something\x02"), Stream(200, std::byte{3})};
}

const Fuzzer kFrameReader("frame_reader", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::frame_reader_fuzz

// The front of a frame, and that of a piece on a lane (wire/frame.h). The first byte says whether the checksum is put
// right before the bytes are read: else nearly nothing would come past it.

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/wire/crc32c.h"
#include "treadle/core/wire/frame.h"

namespace treadle::fuzz::frame_fuzz {
namespace {

constexpr wire::FrameLimits kLimits{.payloadBytes = 4096, .bufferBytes = 1 << 20, .buffers = 64};
constexpr size_t kKindAt = 4, kCrcAt = 12, kRestAt = 16, kCheckAt = 22;

template <class T>
void put(std::vector<std::byte>& front, size_t at, T number) {
  std::memcpy(front.data() + at, &number, sizeof number);
}

void repairHeader(std::vector<std::byte>& front) {
  Bytes header = front;
  uint32_t check = wire::crc32c(header.first(kCheckAt).subspan(kRestAt), wire::crc32c(header.first(kCrcAt)));
  bool handshake = front[kKindAt] == static_cast<std::byte>(wire::FrameKind::kHandshake);
  put(front, kCheckAt, static_cast<uint16_t>(handshake ? 0 : check));
}

void repair(std::vector<std::byte>& front) {
  put(front, kCrcAt, uint32_t{0});
  put(front, kCrcAt, wire::crc32c(front));
}

void feedFrame(std::vector<std::byte> front, bool repaired) {
  if (front.size() < wire::kHeaderBytes) return;
  if (repaired) repairHeader(front);
  Result<wire::FrameHeader> header = wire::parseHeader(Bytes(front).first(wire::kHeaderBytes), kLimits);
  if (!header.ok() || front.size() < header->frontBytes()) return;
  promise(header->payloadBytes <= kLimits.payloadBytes && header->bufferBytes <= kLimits.bufferBytes &&
              header->bufferCount <= kLimits.buffers,
          "a header that is read is within the limits");
  front.resize(header->frontBytes());
  if (repaired) {
    repair(front);
    header = wire::parseHeader(Bytes(front).first(wire::kHeaderBytes), kLimits);
  }
  Result<std::vector<wire::BufferEntry>> entries = wire::parseFront(*header, front);
  if (!entries.ok()) return;
  uint64_t sum = 0;
  for (const wire::BufferEntry& entry : *entries) sum += entry.sizeBytes;
  promise(sum == header->bufferBytes, "the sizes of a frame's buffers add up");
  Bytes payload = Bytes(front).last(header->payloadBytes);
  promise(wire::frameFront(header->kind, header->subject, payload, *entries) == front,
          "a frame that is read is written as it came");
}

void feedPiece(std::vector<std::byte> front, bool repaired) {
  if (front.size() < wire::kPieceFrontBytes) return;
  front.resize(wire::kPieceFrontBytes);
  if (repaired) {
    repairHeader(front);
    repair(front);
  }
  Result<wire::Piece> piece = wire::parsePieceFront(front, kLimits);
  if (!piece.ok()) return;
  Result<wire::Piece> again = wire::parsePieceFront(wire::pieceFront(*piece), kLimits);
  promise(again.ok() && *again == *piece, "a piece that is read is written as it came");
}

void feed(Bytes input) {
  Choices choices(input);
  bool repaired = choices.below(2) == 1;
  Bytes rest = choices.rest();
  promise(wire::crc32c(rest) == wire::crc32cPortable(rest), "both ways to compute the checksum agree");
  std::vector<std::byte> bytes(rest.begin(), rest.end());
  feedFrame(bytes, repaired);
  feedPiece(bytes, repaired);
}

Inputs seeds() {
  std::vector<wire::BufferEntry> entries = {{100, wire::Place::kInline, 0},     {0, wire::Place::kInline, 0},
                                            {4096, wire::Place::kLent, 64},     {4096, wire::Place::kReturned, 128},
                                            {70'000, wire::Place::kOnLanes, 7}, {70'000, wire::Place::kOffered, 8}};
  Inputs all;
  for (std::byte repaired : {std::byte{0}, std::byte{1}}) {
    all.push_back(joined({{repaired}, wire::pieceFront({1, 0, 70'000, 30'000})}));
    for (uint8_t kind = 1; kind <= static_cast<uint8_t>(wire::FrameKind::kComing); ++kind)
      all.push_back(joined({{repaired}, wire::frameFront(wire::FrameKind{kind}, 1, bytesOf("payload"))}));
    all.push_back(
        joined({{repaired}, wire::frameFront(wire::FrameKind::kMessage, 2, bytesOf("with buffers"), entries)}));
  }
  return all;
}

const Fuzzer kFrame("frame", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::frame_fuzz

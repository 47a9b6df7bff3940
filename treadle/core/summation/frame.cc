#include "treadle/core/summation/frame.h"

#include <cstring>

#include "treadle/core/base/check.h"
#include "treadle/core/wire/crc32c.h"
#include "treadle/core/wire/reader.h"

namespace treadle::summation {
namespace {

constexpr size_t kKindAt = 0, kCheckAt = 2, kSizeAt = 4, kTensorAt = 8, kCrcAt = 12, kRoundAt = 16, kOffsetAt = 24;

template <class Number>
void put(FrameHeader* header, size_t at, Number number) {
  std::memcpy(header->data() + at, &number, sizeof number);
}

uint16_t checkOf(FrameHeader header) {
  put(&header, kCheckAt, uint16_t{0});
  return static_cast<uint16_t>(wire::crc32c(header));
}

uint32_t crcOf(FrameHeader header, Bytes piece) {
  put(&header, kCheckAt, uint16_t{0});
  put(&header, kCrcAt, uint32_t{0});
  return wire::crc32c(piece, wire::crc32c(header));
}

bool hasPiece(FrameKind kind) {
  return kind == FrameKind::kAddend || kind == FrameKind::kSum || kind == FrameKind::kVersion;
}

}  // namespace

FrameHeader encode(const Frame& frame, Bytes piece) {
  TREADLE_CHECK(
      piece.size() == frame.sizeBytes && hasPiece(frame.kind) == !piece.empty() && piece.size() <= kMostPieceBytes,
      "a frame with another piece than it says");
  FrameHeader header{};
  put(&header, kKindAt, static_cast<uint8_t>(frame.kind));
  put(&header, kSizeAt, frame.sizeBytes);
  put(&header, kTensorAt, frame.tensor);
  put(&header, kRoundAt, frame.round);
  put(&header, kOffsetAt, frame.offset);
  put(&header, kCrcAt, crcOf(header, piece));
  put(&header, kCheckAt, checkOf(header));
  return header;
}

Result<Frame> parseFrame(const FrameHeader& header) {
  wire::Reader reader(header);
  const auto kind = reader.number<uint8_t>(), zero = reader.number<uint8_t>();
  const auto check = reader.number<uint16_t>();
  Frame frame;
  frame.sizeBytes = reader.number<uint32_t>();
  frame.tensor = reader.number<uint32_t>();
  reader.number<uint32_t>();  // the checksum of the piece too: isWhole
  frame.round = reader.number<uint64_t>();
  frame.offset = reader.number<uint64_t>();
  if (check != checkOf(header)) return dataLoss("a frame of a summation service was damaged on the way");
  if (kind < static_cast<uint8_t>(FrameKind::kAnnounce) || kind > static_cast<uint8_t>(FrameKind::kVersion) ||
      zero != 0)
    return dataLoss("a frame of a summation service has an unknown kind");
  frame.kind = static_cast<FrameKind>(kind);
  if (hasPiece(frame.kind) != (frame.sizeBytes > 0) || frame.sizeBytes > kMostPieceBytes)
    return dataLoss("a frame of a summation service has a piece of " + std::to_string(frame.sizeBytes) + " bytes");
  return frame;
}

Status neverSent(const std::string& what) { return dataLoss("it sent " + what + " in a summation service"); }

bool isWhole(const FrameHeader& header, Bytes piece) {
  uint32_t crc = 0;
  std::memcpy(&crc, header.data() + kCrcAt, sizeof crc);
  return crc == crcOf(header, piece);
}

}  // namespace treadle::summation

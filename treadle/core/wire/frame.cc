#include "treadle/core/wire/frame.h"

#include <array>

#include "treadle/core/base/check.h"
#include "treadle/core/wire/crc32c.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::wire {
namespace {

constexpr size_t kCrcOffset = 12;
constexpr uint8_t kLastKind = static_cast<uint8_t>(FrameKind::kComing);
constexpr uint8_t kLastPlace = static_cast<uint8_t>(Place::kOffered);
constexpr uint64_t kSizeMask = (uint64_t{1} << 56) - 1;

}  // namespace

std::vector<std::byte> frameFront(FrameKind kind, uint8_t subject, Bytes payload,
                                  std::span<const BufferEntry> buffers) {
  TREADLE_CHECK(buffers.size() <= UINT16_MAX && payload.size() <= UINT32_MAX, "a frame over the format's limits");
  uint64_t bufferBytes = 0;
  for (const BufferEntry& buffer : buffers) bufferBytes += buffer.sizeBytes;
  Writer writer;
  writer.reserve(kHeaderBytes + 16 * buffers.size() + payload.size());
  writer.number(kMagic);
  writer.number(static_cast<uint8_t>(kind));
  writer.number(subject);
  writer.number(static_cast<uint16_t>(buffers.size()));
  writer.number(static_cast<uint32_t>(payload.size()));
  writer.number(uint32_t{0});
  writer.number(bufferBytes);
  for (const BufferEntry& buffer : buffers) {
    writer.number(buffer.sizeBytes | uint64_t{static_cast<uint8_t>(buffer.place)} << 56);
    writer.number(buffer.at);
  }
  writer.raw(payload);
  writer.patch(kCrcOffset, crc32c(writer.bytes()));
  return writer.take();
}

// Each check stands before the first use of what it checks. The subject is left to the connection, which
// knows the rooms.
Result<FrameHeader> parseHeader(Bytes bytes, const FrameLimits& limits) {
  Reader reader(bytes);
  if (reader.number<uint32_t>() != kMagic) return dataLoss("the peer does not speak Treadle's protocol");
  FrameHeader header;
  auto kind = reader.number<uint8_t>();
  header.subject = reader.number<uint8_t>();
  header.bufferCount = reader.number<uint16_t>();
  header.payloadBytes = reader.number<uint32_t>();
  header.crc = reader.number<uint32_t>();
  header.bufferBytes = reader.number<uint64_t>();
  TREADLE_RETURN_IF_ERROR(reader.status("a frame header"));
  if (kind < 1 || kind > kLastKind) return dataLoss("a frame of unknown kind " + std::to_string(kind));
  header.kind = static_cast<FrameKind>(kind);
  if (header.payloadBytes > limits.payloadBytes)
    return resourceExhausted("a payload of " + std::to_string(header.payloadBytes) + " bytes is over the limit of " +
                             std::to_string(limits.payloadBytes));
  if (header.bufferBytes > limits.bufferBytes)
    return resourceExhausted("buffers of " + std::to_string(header.bufferBytes) + " bytes are over the limit of " +
                             std::to_string(limits.bufferBytes));
  if (header.bufferCount > limits.buffers)
    return resourceExhausted(std::to_string(header.bufferCount) + " buffers are over the limit of " +
                             std::to_string(limits.buffers));
  return header;
}

// The checksum is compared before a single size is believed; the subtraction cannot wrap, as each size is at
// most what is left.
Result<std::vector<BufferEntry>> parseFront(const FrameHeader& header, Bytes front) {
  TREADLE_CHECK(front.size() == header.frontBytes(), "parseFront needs exactly the front of the frame");
  constexpr uint32_t kZero = 0;
  uint32_t crc = crc32c(front.first(kCrcOffset));
  crc = crc32c(std::as_bytes(std::span(&kZero, 1)), crc);
  crc = crc32c(front.subspan(kCrcOffset + sizeof kZero), crc);
  if (crc != header.crc) return dataLoss("a frame's checksum does not match its bytes: it was damaged on the way");
  Reader reader(front.subspan(kHeaderBytes, header.entriesBytes()));
  std::vector<BufferEntry> entries(header.bufferCount);
  uint64_t left = header.bufferBytes;
  for (BufferEntry& entry : entries) {
    auto size = reader.number<uint64_t>();
    entry.sizeBytes = size & kSizeMask;
    if (size >> 56 > kLastPlace) return dataLoss("a frame's buffer is in an unknown place");
    entry.place = static_cast<Place>(size >> 56);
    entry.at = reader.number<uint64_t>();
    if (entry.sizeBytes > left) return dataLoss("a frame's buffer sizes do not add up");
    left -= entry.sizeBytes;
  }
  if (left != 0) return dataLoss("a frame's buffer sizes do not add up");
  return entries;
}

std::vector<std::byte> pieceFront(const Piece& piece) {
  const std::array payload = {piece.number, piece.offsetBytes, piece.totalBytes};
  return frameFront(FrameKind::kPiece, 0, std::as_bytes(std::span(payload)), std::array{BufferEntry{piece.sizeBytes}});
}

Result<Piece> parsePieceFront(Bytes front, const FrameLimits& limits) {
  Result<FrameHeader> header = parseHeader(front.first(kHeaderBytes), limits);
  if (!header.ok()) return std::move(header).status();
  if (header->kind != FrameKind::kPiece || header->bufferCount != 1 || header->frontBytes() != kPieceFrontBytes)
    return dataLoss("something else than a piece of a buffer came on a lane");
  Result<std::vector<BufferEntry>> entries = parseFront(*header, front);
  if (!entries.ok()) return std::move(entries).status();
  if (entries->front().place != Place::kInline) return dataLoss("a piece of a buffer comes without its bytes");
  Reader reader(front.last(front.size() - kHeaderBytes - header->entriesBytes()));
  Piece piece;
  piece.number = reader.number<uint64_t>();
  piece.offsetBytes = reader.number<uint64_t>();
  piece.totalBytes = reader.number<uint64_t>();
  piece.sizeBytes = entries->front().sizeBytes;
  return piece;
}

}  // namespace treadle::wire

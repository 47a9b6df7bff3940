#include "treadle/core/wire/frame.h"

#include <array>
#include <cstring>

#include "treadle/core/base/check.h"
#include "treadle/core/wire/crc32c.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::wire {
namespace {

constexpr size_t kCrcOffset = 12, kCheckOffset = 22;
constexpr size_t kCrcBytes = sizeof(uint32_t);
constexpr uint8_t kLastKind = static_cast<uint8_t>(FrameKind::kComing);
constexpr uint8_t kLastPlace = static_cast<uint8_t>(Place::kOffered);
constexpr uint64_t kSizeMask = (uint64_t{1} << 56) - 1;

// Of a header without its crc. Frames of the handshake have none, as releases before 7 wrote no other ones, and are to
// hear which version this is.
uint16_t checkOf(FrameKind kind, Bytes header) {
  if (kind == FrameKind::kHandshake) return 0;
  std::array<std::byte, kCheckOffset - kCrcBytes> summed;
  std::memcpy(summed.data(), header.data(), kCrcOffset);
  std::memcpy(summed.data() + kCrcOffset, header.data() + kCrcOffset + kCrcBytes, summed.size() - kCrcOffset);
  return static_cast<uint16_t>(crc32c(summed));
}

}  // namespace

std::vector<std::byte> frameFront(FrameKind kind, uint8_t subject, Bytes payload,
                                  std::span<const BufferEntry> buffers) {
  uint64_t bufferBytes = 0;
  for (const BufferEntry& buffer : buffers) bufferBytes += buffer.sizeBytes;
  TREADLE_CHECK(buffers.size() <= UINT16_MAX && payload.size() <= UINT32_MAX && bufferBytes <= kMostBufferBytes,
                "a frame over the format's limits");
  Writer writer;
  writer.reserve(kHeaderBytes + 16 * buffers.size() + payload.size());
  writer.number(kMagic);
  writer.number(static_cast<uint8_t>(kind));
  writer.number(subject);
  writer.number(static_cast<uint16_t>(buffers.size()));
  writer.number(static_cast<uint32_t>(payload.size()));
  writer.number(uint32_t{0});
  writer.number(bufferBytes);
  writer.patch(kCheckOffset, checkOf(kind, writer.bytes()));
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
  // A record of TLS's handshake: RFC 8446 section 5.1.
  if (bytes.size() >= 2 && bytes[0] == std::byte{22} && bytes[1] == std::byte{3})
    return failedPrecondition(
        "the peer speaks TLS, which this worker does not at this address; give all workers of a job the same of "
        "JoinOptions::allowPlaintext and JoinOptions::tls (TREADLE_TLS)");
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
  const auto check = static_cast<uint16_t>(header.bufferBytes >> 48);
  header.bufferBytes &= kMostBufferBytes;
  if (check != checkOf(header.kind, bytes)) return dataLoss("a frame's header was damaged on the way");
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
  std::array<std::byte, kHeaderBytes> withoutCrc;
  std::memcpy(withoutCrc.data(), front.data(), kHeaderBytes);
  std::memset(withoutCrc.data() + kCrcOffset, 0, kCrcBytes);
  const uint32_t crc = crc32c(front.subspan(kHeaderBytes), crc32c(withoutCrc));
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
  return frameFront(FrameKind::kPiece, 0, std::as_bytes(std::span(payload)),
                    std::array{BufferEntry{piece.sizeBytes, Place::kInline, piece.crc}});
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
  piece.crc = entries->front().at;
  return piece;
}

Status damagedBuffer() { return dataLoss("a tensor's checksum does not match its bytes: it was damaged on the way"); }

}  // namespace treadle::wire

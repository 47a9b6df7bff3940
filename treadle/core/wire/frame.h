#pragma once
// The layout of what one worker sends another (docs/protocol/link.md):
//
//   frame  := header buffer-size* payload buffer*
//   header := magic:u32  kind:u8  subject:u8  bufferCount:u16  payloadBytes:u32  crc:u32  bufferBytes:u64   (24 bytes)
//
// Numbers are little-endian. `crc` is CRC-32C over the header with crc = 0, the buffer sizes (u64 each) and the
// payload. The bytes of the buffers are not covered: on the loopback they are as safe as any memory.
// `bufferBytes` is the sum of the buffer sizes. Pure functions; any thread.

#include <cstdint>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/status.h"

namespace treadle::wire {

inline constexpr uint32_t kMagic = 0x314C4454;  // "TDL1" in memory
inline constexpr size_t kHeaderBytes = 24;

enum class FrameKind : uint8_t {
  kHandshake = 1,  // before anything else
  kMessage = 2,    // for the room that `subject` names
  kHeartbeat = 3,  // "I live": no payload
  kLeave = 4,      // the last frame: why the sender goes
};

struct FrameHeader {
  FrameKind kind = FrameKind::kMessage;
  uint8_t subject = 0;
  uint16_t bufferCount = 0;
  uint32_t payloadBytes = 0;
  uint32_t crc = 0;
  uint64_t bufferBytes = 0;

  size_t sizesBytes() const { return size_t{8} * bufferCount; }
  // What stands in front of the buffers' bytes.
  size_t frontBytes() const { return kHeaderBytes + sizesBytes() + payloadBytes; }
};

// What a receiver takes; a frame beyond it is refused before anything is allocated for it. The sender applies its own
// limits to what it sends, so all workers of a job need the same ones.
struct FrameLimits {
  uint32_t payloadBytes = 64U << 20;
  uint64_t bufferBytes = uint64_t{16} << 30;
  uint16_t buffers = UINT16_MAX;
};

// Header, sizes and payload of a frame as they go on the wire: one allocation. The caller has checked the frame against
// its limits.
std::vector<std::byte> frameFront(FrameKind kind, uint8_t subject, Bytes payload, std::span<const Buffer> buffers);

// Reads the first kHeaderBytes of a frame. DataLoss: not a frame or an unknown kind. ResourceExhausted: over a limit.
Result<FrameHeader> parseHeader(Bytes bytes, const FrameLimits& limits);

// Checks `front` (the header's frontBytes()) against the crc and yields the sizes of the buffers, whose sum is
// header.bufferBytes. DataLoss otherwise.
Result<std::vector<uint64_t>> parseFront(const FrameHeader& header, Bytes front);

}  // namespace treadle::wire

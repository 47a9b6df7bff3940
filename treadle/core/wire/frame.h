#pragma once
// The layout of what one worker sends another (docs/protocol/link.md):
//
//   frame  := header entry* payload buffer*
//   header := magic:u32 kind:u8 subject:u8 bufferCount:u16 payloadBytes:u32 crc:u32 bufferBytes:u48 check:u16 (24
//   bytes) entry  := size:u56 place:u8 at:u64 (16 bytes)
//
// Numbers are little-endian. `crc` is CRC-32C over the header with crc = 0, the entries and the payload. `check` is of
// the header's other fields alone, so that a damaged length is noticed before anybody waits for so many bytes; 0 in
// frames of the handshake. `bufferBytes` is the sum of the buffer sizes, wherever they are; those of place kInline
// follow, and where the link does not protect its bytes itself each entry has their CRC-32C. Pure functions; any
// thread.

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
  kHeartbeat = 3,  // "I live": no payload, or where a pulse is from now on that says so without frames
  kLeave = 4,      // the last frame: why the sender goes
  kArena = 5,      // a descriptor comes with it: the sender's arena of shared memory
  kMapped = 6,     // whether the receiver of kArena can use it, and why not
  kRelease = 7,    // blocks of the receiver's arena that the sender is done with
  kPiece = 8,      // on a lane: a part of a buffer that a message announces
  kTable = 9,      // where the sender's table of offered buffers lies in its memory
  kReadable = 10,  // whether the receiver of kTable can read it, and why not
  kComing = 11,    // a message of whose large buffers the sender makes copies will be here in a moment: no payload
};

// Where the bytes of a buffer are. The numbers travel on the wire: never renumber.
enum class Place : uint8_t {
  kInline = 0,    // after the frame's front, in order; `at` is the CRC-32C of its bytes, on TCP without TLS, else 0
  kLent = 1,      // in the sender's arena at the offset `at`, until the receiver says kRelease or returns it
  kReturned = 2,  // in the receiver's own arena at the offset `at`: a block that it lent, given back
  kOnLanes = 3,   // in pieces on the connection's lanes, under the number `at`
  kOffered = 4,   // in the sender's memory, where its table of offers says under the number `at`
};
inline constexpr size_t kPlaces = 5;

struct BufferEntry {
  uint64_t sizeBytes = 0;  // below 2^56
  Place place = Place::kInline;
  uint64_t at = 0;

  bool operator==(const BufferEntry&) const = default;
};

struct FrameHeader {
  FrameKind kind = FrameKind::kMessage;
  uint8_t subject = 0;
  uint16_t bufferCount = 0;
  uint32_t payloadBytes = 0;
  uint32_t crc = 0;
  uint64_t bufferBytes = 0;

  size_t entriesBytes() const { return size_t{16} * bufferCount; }
  // What stands in front of the buffers' bytes.
  size_t frontBytes() const { return kHeaderBytes + entriesBytes() + payloadBytes; }
};

// Limits of one message. A receiver rejects a larger message before it allocates memory for it. Senders apply their own
// limits, so all workers of a job need the same ones.
struct FrameLimits {
  uint32_t payloadBytes = 64U << 20;
  uint64_t bufferBytes = uint64_t{16} << 30;
  uint16_t buffers = UINT16_MAX;
};

// Header, entries and payload of a frame as they go on the wire: one allocation. The caller has checked the frame
// against its limits.
std::vector<std::byte> frameFront(FrameKind kind, uint8_t subject, Bytes payload,
                                  std::span<const BufferEntry> buffers = {});

// A kPiece: which part of which buffer the bytes are that follow its front, which has always the same length.
struct Piece {
  uint64_t number = 0;       // of the buffer, counted by its sender
  uint64_t offsetBytes = 0;  // of the piece in it
  uint64_t totalBytes = 0;   // of the whole buffer
  uint64_t sizeBytes = 0;    // of the piece
  uint64_t crc = 0;          // CRC-32C of its bytes, on TCP without TLS

  bool operator==(const Piece&) const = default;
};
inline constexpr size_t kPieceFrontBytes = kHeaderBytes + 16 + 24;
std::vector<std::byte> pieceFront(const Piece& piece);
// Of kPieceFrontBytes bytes. DataLoss for anything else than a piece's front; ResourceExhausted over a limit.
Result<Piece> parsePieceFront(Bytes front, const FrameLimits& limits);

// Reads the first kHeaderBytes of a frame. FailedPrecondition: TLS. DataLoss: not a frame, an unknown kind or damaged.
// ResourceExhausted: over a limit.
Result<FrameHeader> parseHeader(Bytes bytes, const FrameLimits& limits);

// What a receiver says of a buffer whose bytes do not have the checksum that their sender gave.
Status damagedBuffer();

// The largest sum of buffers that a header can tell.
inline constexpr uint64_t kMostBufferBytes = (uint64_t{1} << 48) - 1;

// Checks `front` (the header's frontBytes()) against the crc and yields the entries of the buffers, whose sizes add up
// to header.bufferBytes. DataLoss otherwise.
Result<std::vector<BufferEntry>> parseFront(const FrameHeader& header, Bytes front);

}  // namespace treadle::wire

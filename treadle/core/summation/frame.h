#pragma once
// The layout of what the machines of a summation service send each other on the connections of their pumps:
//
//   frame := kind:u8 0:u8 check:u16 sizeBytes:u32 tensor:u32 crc:u32 round:u64 offset:u64 (32 bytes), sizeBytes bytes
//
// Numbers are little-endian. `crc` is CRC-32C over the header with crc = 0 and check = 0, and the bytes. `check` is the
// lower half of the CRC-32C of the header with check = 0, so that a damaged length is noticed before anybody waits for
// so many bytes. Pure functions; any thread.

#include <array>
#include <cstdint>
#include <string>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/status.h"

namespace treadle::summation {

enum class FrameKind : uint8_t {
  kAnnounce = 1,  // from a worker: its data of the part is there
  kGrant = 2,     // to a worker: send the part
  kAddend = 3,    // from a worker: a piece of its data
  kSum = 4,       // to a worker: a piece of the sum
  kLeave = 5,     // from a worker: it makes no more sums, and announces only what is summed again
  kHave = 6,      // from a worker: it has the sums of the part of all rounds before this one
  kRelease = 7,   // to a worker: all workers have them, and this round is next
  kVersion = 8,   // of running sums: the version of the answer that follows; from a worker, of the one that it has
};

inline constexpr size_t kFrameHeaderBytes = 32;
inline constexpr size_t kMostPieceBytes = size_t{64} << 10;

struct Frame {
  FrameKind kind = FrameKind::kAnnounce;
  uint32_t sizeBytes = 0;  // of the piece that follows, 1 to kMostPieceBytes; 0 with kinds that have none
  uint32_t tensor = 0;     // in the order of declaration
  uint64_t round = 0;      // the how-manieth sum of the tensor, from 0 on; with kLeave how many sums it has made
  uint64_t offset = 0;     // bytes in the tensor: where the part begins, or the piece

  bool operator==(const Frame&) const = default;
};

using FrameHeader = std::array<std::byte, kFrameHeaderBytes>;

// `piece` has frame.sizeBytes bytes.
FrameHeader encode(const Frame& frame, Bytes piece);

// DataLoss: damaged, or what no machine sends.
Result<Frame> parseFrame(const FrameHeader& header);

// A frame that no machine sends: DataLoss, "it sent `what` in a summation service".
Status neverSent(const std::string& what);

// Whether the bytes of the piece are those that were sent with the header.
bool isWhole(const FrameHeader& header, Bytes piece);

}  // namespace treadle::summation

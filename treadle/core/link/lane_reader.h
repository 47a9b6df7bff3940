#pragma once
// Reads one lane: pieces of large buffers and nothing else, each straight from the socket to its place. One thread at a
// time.
//
// Budget of a piece: a recvmsg for its front and what follows at once, another for the rest, two locks of the receiver,
// no copy.

#include <array>

#include "treadle/core/io/stream.h"
#include "treadle/core/link/lane_receiver.h"

namespace treadle::link {

class LaneReader {
 public:
  // `receiver` must outlive it. `checks`: pieces have checksums of their
  // bytes, as where the stream does not guard them itself.
  LaneReader(LaneReceiver& receiver, const wire::FrameLimits& limits, bool checks = false)
      : receiver_(receiver), limits_(limits), checks_(checks) {}

  struct Progress {
    size_t bytes = 0;    // that came
    bool whole = false;  // a buffer that is announced has all of its bytes
  };
  // Reads what `from` has now, up to about a MiB; with `wait` also what is missing of a piece that has begun, as long
  // as the socket's own time limit allows. PeerLost at the end of the stream; DataLoss or ResourceExhausted for what is
  // no piece, is damaged, or cannot be one of those that are missing.
  Result<Progress> readFrom(io::Stream& from, bool wait = false);
  // Of the piece that has begun.
  size_t missingBytes() const { return room_.sizeBytes; }

 private:
  Result<bool> take(size_t bytes);
  ssize_t receive(io::Stream& from, bool wait, size_t most);
  MutableBytes frontRoom() { return MutableBytes(front_).subspan(frontFilled_); }

  LaneReceiver& receiver_;
  const wire::FrameLimits limits_;
  const bool checks_;
  std::array<std::byte, wire::kPieceFrontBytes> front_;  // of the next piece
  size_t frontFilled_ = 0;
  wire::Piece piece_;  // the one that is being filled
  Buffer room_;        // what is left to fill of it
  uint32_t crc_ = 0;   // of what is filled
};

}  // namespace treadle::link

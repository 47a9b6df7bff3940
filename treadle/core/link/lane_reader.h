#pragma once
// Reads one lane: pieces of large buffers and nothing else, each straight from the socket to its place. One thread at a
// time.
//
// Budget: one recvmsg for the rest of a piece and the front of the next, one lock of the receiver for each, no copy.

#include <array>

#include "treadle/core/link/lane_receiver.h"

namespace treadle::link {

class LaneReader {
 public:
  // `receiver` must outlive it.
  LaneReader(LaneReceiver& receiver, const wire::FrameLimits& limits) : receiver_(receiver), limits_(limits) {}

  // Reads what `fd` has now, up to about a MiB. True when a buffer that is announced has become whole. PeerLost at the
  // end of the stream; DataLoss or ResourceExhausted for what is no piece, or cannot be one of those that are missing.
  Result<bool> readFrom(int fd);

 private:
  Result<bool> take(size_t bytes);
  MutableBytes frontRoom() { return MutableBytes(front_).subspan(frontFilled_); }

  LaneReceiver& receiver_;
  const wire::FrameLimits limits_;
  std::array<std::byte, wire::kPieceFrontBytes> front_;  // of the next piece
  size_t frontFilled_ = 0;
  wire::Piece piece_;  // the one that is being filled
  Buffer room_;        // what is left to fill of it
};

}  // namespace treadle::link

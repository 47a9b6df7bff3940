#pragma once
// The receiving half of a connection: turns what a socket has into whole frames. Owned by a connection (or a
// handshake); whoever holds its read turn calls it, one thread at a time. Small frames are cut out of one read buffer;
// the bytes of buffers go straight from the socket to their memory.

#include <optional>

#include "treadle/core/base/clock.h"
#include "treadle/core/base/status.h"
#include "treadle/core/base/unique_function.h"
#include "treadle/core/io/stream.h"
#include "treadle/core/memory/block_pool.h"
#include "treadle/core/wire/frame.h"

namespace treadle::link {

struct Frame {
  wire::FrameHeader header;
  std::vector<std::byte> payload;
  std::vector<wire::BufferEntry> entries;
  std::vector<Buffer> buffers;  // by entry; filled for those of place kInline, empty for the others
  io::Fd descriptor;            // of a kArena frame: what came with it, if anything did
};

// It trusts nothing: the header is checked against the limits before the front is read, the front against its
// checksum before memory is taken for the buffers, and these against theirs while their bytes are in the cache.
class FrameReader {
 public:
  // `pool`: where large buffers are read into; null: ordinary memory. `takesDescriptors`: for UNIX sockets.
  // `checksBuffers`: their bytes have checksums, as where the stream does not guard them itself.
  explicit FrameReader(wire::FrameLimits limits, memory::BlockPool* pool = nullptr, bool takesDescriptors = false,
                       bool checksBuffers = false)
      : limits_(limits), pool_(pool), takesDescriptors_(takesDescriptors), checksBuffers_(checksBuffers) {}

  // Reads what `from` has now, up to about a MiB, and calls `onFrame` for each whole frame. True when the socket had
  // something. PeerLost at the end of the stream; DataLoss or ResourceExhausted for bytes that are no frame within
  // the limits: the stream is of no use after that.
  Result<bool> readFrom(io::Stream& from, UniqueFunction<void(Frame)>& onFrame);

 private:
  Result<bool> readSome(io::Stream& from, UniqueFunction<void(Frame)>& onFrame);
  Status consume(UniqueFunction<void(Frame)>& onFrame);
  Result<bool> startFrame();
  ssize_t receive(io::Stream& from, MutableBytes room);
  Status fillBuffers();
  MutableBytes target();
  void advance(size_t bytes);
  void filled(size_t bytes);

  const wire::FrameLimits limits_;
  memory::BlockPool* const pool_;
  const bool takesDescriptors_, checksBuffers_;
  io::Fd descriptor_;               // came with a frame that is not complete yet
  bool manyDescriptors_ = false;    // more came than any peer would send
  std::vector<std::byte> scratch_;  // bytes [begin_, end_) are read and not yet cut; none while nothing is
  size_t begin_ = 0, end_ = 0;
  std::optional<Frame> current_;  // its front is complete, its buffers are being filled
  size_t bufferIndex_ = 0, bufferOffset_ = 0;
  uint32_t bufferCrc_ = 0;  // of the bytes before the offset
};

// Waits for one frame and reads not a byte beyond it: for sockets that are handed on afterwards. DeadlineExceeded, and
// what FrameReader says. Buffers elsewhere than in the frame come empty.
Result<Frame> readOneFrame(io::Stream& from, const wire::FrameLimits& limits, TimePoint deadline);

}  // namespace treadle::link

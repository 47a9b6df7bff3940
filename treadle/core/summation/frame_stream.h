#pragma once
// Frames on one connection of a pump: read piece by piece to where they belong, and written one after the other. One
// thread at a time.
//
// Budget of a piece: one system call to read it together with the header behind it, one to write it with its header.

#include <optional>

#include "treadle/core/io/stream.h"
#include "treadle/core/summation/outgoing.h"

namespace treadle::summation {

// What takes the frames of a connection.
class FrameReceiver {
 public:
  virtual ~FrameReceiver() = default;
  // Where the piece of the frame goes; nothing for frames without one. DataLoss: no machine sends it.
  virtual Result<MutableBytes> roomFor(const Frame& frame) = 0;
  // All of the frame is there.
  virtual Status arrived(const Frame& frame) = 0;
};

class FrameReader {
 public:
  // Reads what the stream has now, up to about 256 KiB and what it holds back. PeerLost at its end; DataLoss for
  // damage, and what the receiver says.
  Status readFrom(io::Stream& stream, FrameReceiver& receiver);

 private:
  Status take(size_t bytes, bool checks, FrameReceiver& receiver);
  Status takeHeader(bool checks, FrameReceiver& receiver);

  FrameHeader next_;  // being read
  size_t nextFilled_ = 0;
  std::optional<Frame> frame_;  // whose piece is being read
  FrameHeader header_;          // its header
  MutableBytes piece_;          // all of it
  size_t pieceFilled_ = 0;
};

class FrameWriter {
 public:
  bool isIdle() const { return !frame_; }
  // The piece stays where it is until it is written.
  void begin(const Outgoing& frame);
  // Yields the bytes that the stream took: 0 where it takes none now, and where it only passes on what it has taken
  // before (Stream::flushed). PeerLost: it is broken.
  Result<size_t> writeTo(io::Stream& stream);
  // Once all is written: the frame, and the writer is idle.
  std::optional<Outgoing> takeWritten();

 private:
  FrameHeader header_;
  std::optional<Outgoing> frame_;
  size_t written_ = 0;  // of header and piece
};

}  // namespace treadle::summation

#pragma once
// One connection of a pump: reads frames to where they belong, and writes what the machine has for the other one. Of
// the pump's thread.

#include <optional>
#include <string>

#include "treadle/core/io/reactor.h"
#include "treadle/core/io/stream.h"
#include "treadle/core/summation/frame_stream.h"
#include "treadle/core/summation/pump_state.h"

namespace treadle::summation {

class PumpConnection final : public io::EventHandler, public FrameReceiver {
 public:
  // `state` must outlive it.
  PumpConnection(PumpState& state, Machine machine, io::Stream stream);

  Machine machine() const { return machine_; }
  int fd() const { return stream_.fd(); }

  // This worker has made so many sums, and makes no more: the other machine is to hear of it.
  void leave(uint64_t sums);
  bool leaveIsWritten() const { return leave_ == Leave::kWritten; }

  bool hasBytes() const;
  // Writes the next frame as far as the socket takes it; yields the bytes.
  size_t write();

  void onEvents(uint32_t events) override;
  Result<MutableBytes> roomFor(const Frame& frame) override;
  Status arrived(const Frame& frame) override;

 private:
  enum class Leave { kNone, kDue, kBeingWritten, kWritten };

  Outgoing take();
  void takesNoMore(const Status& why);
  void setWritable(bool isWritable);
  void end(const Status& why);
  bool mayEnd() const;

  const std::string& name() const { return state_.names[machine_]; }

  PumpState& state_;
  const Machine machine_;
  io::Stream stream_;
  FrameReader reader_;
  FrameWriter writer_;
  Leave leave_ = Leave::kNone;
  Frame leaveFrame_;
  bool takesBytes_ = true, hasEnded_ = false;
};

}  // namespace treadle::summation

#pragma once
// What operations on large data share. Chunks go to a member only when both have begun the operation, so the receiver
// has memory for them, and when this worker may send large data (the permit). The receiver acknowledges chunks.

#include "treadle/core/group/operation.h"
#include "treadle/core/group/segments.h"

namespace treadle::group {

class LargeOperation : public Operation {
 public:
  using Operation::Operation;

  bool large() const final { return true; }

 protected:
  // How many chunks a ring's member sends to the next one before it waits for an acknowledgement.
  static constexpr uint64_t kWindow = 8;

  // Sends what may be sent now: to all members, or to one that has begun or acknowledged something.
  virtual void sendToAll() = 0;
  virtual void sendTo(int member) = 0;

  void onBegin() final;
  void onPermit() final;
  void onStarted(int member, Buffer data) final;

  bool maySendTo(int member) const { return !ended() && begun() && permitted_ && started(member); }
  void sendChunk(int member, uint64_t position, Range range);
  void sendAck(int member, uint64_t positions);
  MutableBytes bytesOf(Range range) const;

 private:
  void send(int member, Message message);

  bool permitted_ = false;  // in the turn
};

}  // namespace treadle::group

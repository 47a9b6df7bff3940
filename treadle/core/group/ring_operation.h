#pragma once
// A large all-reduce or broadcast: chunks go around the ring by a RingPlan, straight from and into the caller's
// memory. At most kWindow chunks that the right neighbour has not acknowledged are in flight to it.

#include "treadle/core/group/large_operation.h"
#include "treadle/core/group/ring_plan.h"

namespace treadle::group {

class RingOperation final : public LargeOperation {
 public:
  explicit RingOperation(Setup setup)
      : LargeOperation(std::move(setup)), plan_(description(), link().size(), link().self()) {}

 private:
  void sendToAll() override { sendChunks(); }
  void sendTo(int) override { sendChunks(); }
  void onChunk(int member, uint64_t position, Buffer data) override;
  void onAck(int member, uint64_t positions) override;
  std::string waitsFor() const override;

  void sendChunks();
  void take(Range range, RingPlan::Action action, const Buffer& data);
  void acknowledge();

  const RingPlan plan_;
  // In the turn.
  uint64_t sent_ = 0, acked_ = 0;             // to and by the right neighbour
  uint64_t received_ = 0, acknowledged_ = 0;  // from and to the left one
};

}  // namespace treadle::group

#pragma once
// A large all-reduce or broadcast: chunks go around the ring by a RingPlan, straight from and into the caller's
// memory. Nothing is sent before the right neighbour has begun the operation too, so that it always has memory for
// what comes, and no more than kWindow chunks are on their way to it.

#include "treadle/core/group/operation.h"
#include "treadle/core/group/ring_plan.h"

namespace treadle::group {

class RingOperation final : public Operation {
 public:
  explicit RingOperation(Setup setup)
      : Operation(std::move(setup)), plan_(description(), link().size(), link().self()) {}

  bool large() const override { return true; }

 private:
  void onBegin() override;
  void onPermit() override;
  void onStarted(int member, Buffer data) override;
  void onChunk(int member, uint64_t position, Buffer data) override;
  void onAck(int member, uint64_t positions) override;
  std::string waitsFor() const override;

  void sendChunks();
  void take(Range range, RingPlan::Action action, const Buffer& data);
  void acknowledge();

  const RingPlan plan_;
  // In the turn.
  bool permitted_ = false;
  uint64_t sent_ = 0, acked_ = 0;             // to and by the right neighbour
  uint64_t received_ = 0, acknowledged_ = 0;  // from and to the left one
};

}  // namespace treadle::group

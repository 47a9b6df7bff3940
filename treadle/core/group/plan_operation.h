#pragma once
// The data of a collective operation: sends, receives and reduces chunks as its Plan says.
//
// Small data, one chunk per channel at most, travels with the starts. Large data goes to a member only when both have
// begun the operation, so that the receiver has memory for it, and when this worker may send large data (the permit).

#include "treadle/core/group/operation.h"
#include "treadle/core/group/progress.h"

namespace treadle::group {

class PlanOperation final : public Operation {
 public:
  PlanOperation(Setup setup, Plan plan);

  bool large() const override { return !plan_.withStarts; }

 private:
  void onBegin() override;
  void onPermit() override;
  void onStarted(int member, Buffer data) override;
  void onChunk(int member, uint64_t position, Buffer data) override;
  void onAck(int member, uint64_t positions) override;
  void onFinished() override;
  Buffer dataWithStart(int member) override;
  uint64_t elementsTo(int member) const override;
  uint64_t elementsFrom(int member) const override;
  std::string waitsFor() const override;

  void advance();
  void makeCopies();
  void takeAll();
  void take(size_t channel, const Chunk& chunk);
  void combine(const Receive& receive, const Chunk& chunk);
  void sendAll();
  void send(int member, Message message);

  Buffer popArrived(size_t channel);
  // Elements in the operation's memory: those of a chunk, or all.
  Bytes read(const Place& from, const Chunk& chunk) const;
  MutableBytes write(const Place& to, const Chunk& chunk) const;
  MutableBytes scratch() const { return {scratch_.get(), plan_.scratch * elementBytes()}; }
  size_t elementBytes() const { return sizeOf(description().dataType); }

  const Plan plan_;
  // In the turn.
  Progress progress_;
  bool permitted_ = false, copied_ = false;
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<std::vector<Buffer>> arrived_;  // by channel: what has not been taken, a window at most
};

}  // namespace treadle::group

#pragma once
// The data of a collective operation whose members know all sizes: sends, receives and reduces chunks as its Plan says.
// Small data, one chunk per channel at most, travels with the starts. With a staging the data lies in its memory, in
// place of the setup's, from when it may be sent.

#include "treadle/core/group/chunked_operation.h"
#include "treadle/core/group/staging.h"

namespace treadle::group {

class PlanOperation : public ChunkedOperation {
 public:
  PlanOperation(Setup setup, Plan plan, std::shared_ptr<Staging> staging = {});

  bool large() const override { return !plan().withStarts; }

 protected:
  void onBegin() override;
  void onStarted(int member, uint64_t elements, Buffer data) override;
  uint64_t elementsTo(int member) const override;
  uint64_t elementsFrom(int member) const;
  void advance() override;

 private:
  void onArrived(size_t channel, const Chunk& chunk, Buffer data) override;
  void onFinished() override;
  Buffer dataWithStart(int member) override;
  Bytes chunkFor(int member, const Place& from, const Chunk& chunk) const override;

  // Return false when the operation has failed: its staging cannot be filled, or there is no memory.
  bool fillStaging();
  bool makeScratch();
  void makeCopies();
  void takeAll();
  void take(size_t channel, const Chunk& chunk);
  void combine(const Receive& receive, const Chunk& chunk);

  Buffer popArrived(size_t channel);
  // Elements in the operation's memory: those of a chunk, or all.
  Bytes read(const Place& from, const Chunk& chunk) const;
  MutableBytes write(const Place& to, const Chunk& chunk) const;
  Bytes source() const { return staging_ ? staged_.source : input(); }
  MutableBytes result() const { return staging_ ? staged_.result : output(); }
  MutableBytes scratch() const { return {scratch_.get(), plan().scratch * elementBytes()}; }

  // In the turn.
  std::shared_ptr<Staging> staging_;
  Staged staged_;
  bool copied_ = false;
  std::unique_ptr<std::byte[]> scratch_;
  std::vector<std::vector<Buffer>> arrived_;  // by channel: what has not been taken, a window at most
};

}  // namespace treadle::group

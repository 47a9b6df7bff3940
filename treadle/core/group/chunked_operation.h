#pragma once
// Sends the chunks of a plan, checks those that arrive, and acknowledges those that have been taken: common to all
// operations on data. Large data goes to a member only when both have begun the operation, so that the receiver has
// memory for it, and when this worker may send large data (the permit). The plan may get more transfers while it is
// executed.

#include "treadle/core/group/operation.h"
#include "treadle/core/group/progress.h"

namespace treadle::group {

class ChunkedOperation : public Operation {
 protected:
  // The plan counts in elements of so many bytes.
  ChunkedOperation(Setup&& setup, Plan plan, size_t elementBytes);

  // These run in the inbox's turn, before the operation has ended.
  // Does what can be done now. Called when anything has changed.
  virtual void advance() = 0;
  // A chunk has arrived where it was due, of the right size.
  virtual void onArrived(size_t channel, const Chunk& chunk, Buffer data) = 0;
  // The bytes of a chunk that is to be sent to a member.
  virtual Bytes chunkFor(int member, const Place& from, const Chunk& chunk) const = 0;

  // The channel gets one more transfer.
  void addSend(size_t channel, const Place& from);
  void addReceive(size_t channel, const Place& to);

  void sendChunks();
  void acknowledgeChunks();

  const Plan& plan() const { return plan_; }
  Progress& progress() { return progress_; }
  size_t elementBytes() const { return elementBytes_; }
  // It has been permitted to send large data, and may have had to stop since.
  bool permitted() const { return permitted_; }
  std::string waitsFor() const override;
  // What it waits for when no chunk is due.
  virtual std::string waitsForOther() const { return "it is about to end"; }

 private:
  void onPermit() final;
  void onChunk(int member, uint64_t position, Buffer data) final;
  void onAck(int member, uint64_t positions) final;

  const size_t elementBytes_;
  Plan plan_;
  Progress progress_;
  bool permitted_ = false;
};

}  // namespace treadle::group

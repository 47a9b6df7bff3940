#pragma once
// What a guard of DistributedDataParallel::join means for the averaged passes of this rank: what the rank reports of
// itself in the exact channel, and what all ranks conclude from the reports. Sends nothing by itself.
//
// Owned by a reducer, and used under its lock.

#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/train/ddp/exact_channel.h"
#include "treadle/train/ddp/uneven_inputs.h"

namespace treadle::ddp {

class JoinState {
 public:
  // A guard lives from here on, until close(). FailedPrecondition: another one lives.
  Status open(UnevenInputs mode);
  void close() { *this = {}; }
  bool isOpen() const { return own_.mode.has_value(); }

  // This rank has no batch left.
  void inputsEnd() { own_.isDone = true; }
  // `pending`: the number of its batches that are not averaged yet. It is done after the pass that averages them.
  JoinReport report(size_t pending) const { return {.mode = own_.mode, .isDone = own_.isDone && pending == 0}; }

  // FailedPrecondition: the guard is over, so no other rank would take part in a pass that begins now.
  Status checkMayBegin() const;
  // FailedPrecondition: this rank has no batch left, so no averaged pass may have one.
  Status checkMayHaveBatch() const;
  // FailedPrecondition: the pass is distributed, and a guard lives.
  Status checkMayAverage(bool isDistributed) const;

  // The reports of a pass that has failed on no rank, by rank in the group. All ranks conclude the same. Not OK: the
  // pass is not averaged. FailedPrecondition: the guards are not alike on all ranks; or some ranks are done and others
  // are not, for kThrow. Cancelled: likewise for kStopAtFirst.
  Status learn(const std::vector<RankReport>& reports, const ProcessGroup& group);

  // The last pass has shown that no pass follows under this guard. After any other one, ranks that have a batch make a
  // step, so those without one make it too.
  bool isOver() const { return isOver_; }
  // The last pass is dropped (kStopAtFirst).
  bool isDropped() const { return isDropped_; }

 private:
  JoinReport own_;
  bool isOver_ = false, isDropped_ = false;
};

}  // namespace treadle::ddp

#pragma once
// Records what happens in averaged passes, for DistributedDataParallel::stats(): a reducer and its exchange report
// events, and this reads the clock.
//
// Owned by a reducer, and used under its lock, except BucketEnds. Budget, in every pass: two reads of the clock and
// nothing else for a gradient that comes; one allocation, one continuation and two short locks for an operation of a
// bucket; a few allocations for a pass. Memory: 32 bytes for each bucket in each of 100 steps.

#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "treadle/core/io/future.h"
#include "treadle/train/ddp/bucket_ends.h"
#include "treadle/train/ddp/ddp_stats.h"
#include "treadle/train/ddp/exact_channel.h"
#include "treadle/train/ddp/step_clock.h"

namespace treadle::ddp {

class PassRecorder {
 public:
  // While it lives, time counts as copies.
  class [[nodiscard]] Copying {
   public:
    explicit Copying(PassRecorder& recorder) : recorder_(recorder), before_(recorder.turnTo(Activity::kCopies)) {}
    ~Copying() { recorder_.turnTo(before_); }
    Copying(const Copying&) = delete;
    Copying& operator=(const Copying&) = delete;

   private:
    PassRecorder& recorder_;
    const Activity before_;
  };

  // The first step begins.
  PassRecorder(int rank, int ranks);

  // What this rank does from now on. Returns what it did.
  Activity turnTo(Activity activity) { return clock_.turnTo(activity, Clock::now()); }
  // An averaged pass begins, with copies.
  void passBegins();
  // Since the last averages, or the news that they come, which all ranks have at about the same time: how long it took
  // this rank to come to where it is.
  Duration elapsed() const { return Clock::now() - agreed_; }

  // Of a bucket, by its place. The first report of a pass counts. One that is launched is ready.
  void ready(size_t bucket);
  void launched(size_t bucket, size_t sizeBytes);
  // It has begun for the bucket.
  void watch(size_t bucket, const Future<void>& operation);
  // The averages of the pass are sure to come, and are put while the next forward pass runs.
  void passGoesOn();
  // All operations of all buckets have ended.
  void allEnded();

  // The pass has gone well on this rank, which has the reports of all. `isUsed`: which parameters had a gradient on
  // some rank; empty if no rank had a batch.
  void averaged(const std::vector<RankReport>& reports, std::vector<bool> isUsed);
  // It is over, well or badly; no effect if none is under way. What follows belongs to the next step.
  void passOver();
  void localPassOver() { ++stats_.localPasses; }

  // Without names.
  DdpStats stats() const;
  // In the last averaged pass for which some rank had a batch. Empty before it.
  const std::vector<bool>& isUsed() const { return isUsed_; }

 private:
  struct Bucket {
    size_t sizeBytes = 0;
    std::optional<TimePoint> ready, launched;
    TimePoint done{};
  };

  Bucket& at(size_t bucket);
  void finish(DdpStep step);

  StepClock clock_;
  DdpStats stats_;  // without recent steps
  std::deque<DdpStep> recent_;
  std::vector<bool> isUsed_;
  // These belong to the pass that is under way.
  bool isUnderWay_ = false, goesOn_ = false;
  TimePoint begun_{}, agreed_{};
  std::vector<Bucket> buckets_;
  std::shared_ptr<BucketEnds> ends_;
  std::optional<DdpStep> step_;  // once it is averaged
};

}  // namespace treadle::ddp

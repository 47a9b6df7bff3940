#include "treadle/train/ddp/pass_recorder.h"

#include <algorithm>
#include <utility>

namespace treadle::ddp {

PassRecorder::PassRecorder(int rank, int ranks) : clock_(Clock::now()), agreed_(Clock::now()) {
  stats_.rank = rank;
  stats_.latestPasses.resize(static_cast<size_t>(ranks));
}

void PassRecorder::passBegins() {
  begun_ = Clock::now();
  clock_.turnTo(Activity::kCopies, begun_);
  isUnderWay_ = true;
  goesOn_ = false;
  buckets_.clear();
  ends_ = std::make_shared<BucketEnds>();
  step_.reset();
}

PassRecorder::Bucket& PassRecorder::at(size_t bucket) {
  if (bucket >= buckets_.size()) buckets_.resize(bucket + 1);
  return buckets_[bucket];
}

void PassRecorder::ready(size_t bucket) {
  Bucket& one = at(bucket);
  if (!one.ready) one.ready = Clock::now();
}

void PassRecorder::launched(size_t bucket, size_t sizeBytes) {
  Bucket& one = at(bucket);
  if (one.launched) return;
  one.sizeBytes = sizeBytes;
  one.launched = Clock::now();
  if (!one.ready) one.ready = one.launched;
}

void PassRecorder::watch(size_t bucket, const Future<void>& operation) {
  ends_->begun(bucket);
  sharedStateOf(operation)->onReady([ends = ends_, bucket] { ends->ended(bucket, Clock::now()); });
}

void PassRecorder::passGoesOn() {
  goesOn_ = true;
  agreed_ = Clock::now();
}

void PassRecorder::allEnded() {
  const TimePoint now = Clock::now();
  for (size_t i = 0; i < buckets_.size(); ++i)
    buckets_[i].done = std::max(*buckets_[i].launched, ends_->lastEnd(i, now));
}

void PassRecorder::averaged(const std::vector<RankReport>& reports, std::vector<bool> isUsed) {
  const RankReport& own = reports[static_cast<size_t>(stats_.rank)];
  const auto latest = std::max_element(reports.begin(), reports.end(),
                                       [](const RankReport& a, const RankReport& b) { return a.elapsed < b.elapsed; });
  DdpStep& step = step_.emplace();
  step.latestRank = static_cast<int>(latest - reports.begin());
  step.waitForLatest = latest->elapsed - own.elapsed;
  if (!own.active) ++stats_.skippedPasses;
  if (!isUsed.empty()) isUsed_ = std::move(isUsed);
}

void PassRecorder::passOver() {
  turnTo(Activity::kOutside);
  if (!std::exchange(isUnderWay_, false)) return;
  if (step_) {
    finish(*std::move(step_));
  } else {
    ++stats_.failedPasses;
  }
}

void PassRecorder::finish(DdpStep step) {
  if (!goesOn_) agreed_ = Clock::now();
  step.times = clock_.endStep();
  step.waitForLatest = std::min(step.waitForLatest, step.times.exposed);
  TimePoint last = begun_;
  for (const Bucket& bucket : buckets_) {
    step.buckets.push_back({bucket.sizeBytes, *bucket.ready - begun_, *bucket.launched - begun_, bucket.done - begun_});
    last = std::max(last, bucket.done);
  }
  if (!buckets_.empty()) step.communication = last - *buckets_.front().launched;
  ++stats_.averagedPasses;
  ++stats_.latestPasses[static_cast<size_t>(step.latestRank)];
  stats_.total += step.times;
  recent_.push_back(std::move(step));
  if (recent_.size() > DdpStats::kRecentSteps) recent_.pop_front();
}

DdpStats PassRecorder::stats() const {
  DdpStats stats = stats_;
  stats.recent.assign(recent_.begin(), recent_.end());
  return stats;
}

}  // namespace treadle::ddp

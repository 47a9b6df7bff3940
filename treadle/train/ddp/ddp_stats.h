#pragma once
// Where the time of a rank goes in data-parallel training: what DistributedDataParallel::stats() returns. Values; any
// thread.
//
// All times are lengths of time, by this rank's own monotonic clock: clocks of two machines are never compared. Which
// rank was the latest is known because each rank reports how long ago it got its last averages, which all ranks get at
// about the same time.

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "treadle/core/base/clock.h"

namespace treadle {

// The parts of a step of this rank: each moment belongs to one of them. A step begins where the one before has ended,
// or with the construction, and ends when the averages of a pass are there (or with DdpOptions::overlapForward, when
// the program has waited for the last of them). So the parts of all steps add up to the
// time that has passed. A pass that fails belongs to the step of the next one that goes well.
struct DdpTimes {
  // Until the first gradient comes: the step of the optimizer, data, the forward pass, passes under noSync(). Steps of
  // DdpOptions::optimizerInBackward too.
  Duration outside{};
  // The backward pass, from the first gradient to the last one, but for `copies`. In a distributed pass it has what the
  // pass waits for other workers too.
  Duration compute{};
  // Gradients are copied into buckets and averages out of them, hooks compute, operations begin.
  Duration copies{};
  // What remains of the pass after the last gradient: waits for other ranks and for the network, which no computation
  // hides. In a pass that follows a failed one, also waits for what that one has begun.
  Duration exposed{};

  Duration step() const { return outside + compute + copies + exposed; }
  DdpTimes& operator+=(const DdpTimes& other);
};

// A bucket in one pass. Points in time are counted from the first gradient of the pass.
struct DdpBucketTimes {
  size_t bytes = 0;     // of gradients; a hook may send fewer
  Duration ready{};     // its last gradient has come
  Duration launched{};  // it is on its way; each bucket waits for those before it
  Duration done{};      // its last operation has ended
};

// A pass that was averaged on this rank, and what came before it.
struct DdpStep {
  DdpTimes times = {};
  // From the launch of the first bucket until the last one is done.
  Duration communication{};
  // In the order in which they are sent. What travels in no bucket, as sparse gradients do, is the last one: its bytes
  // are those of this rank's rows, without their indices, and of its dense gradients there.
  std::vector<DdpBucketTimes> buckets = {};
  // The rank in the group that came last to the end of its pass, counted from the moment at which it had put the
  // averages before in their places, or with DdpOptions::overlapForward from the end of the pass before. The same on
  // all ranks.
  int latestRank = 0;
  // The part of `exposed` in which that rank was not there yet, to a microsecond. A faster network would not save it.
  Duration waitForLatest{};
};

struct DdpStats {
  static constexpr size_t kRecentSteps = 100;

  int rank = 0;                           // this one, in the group
  std::vector<std::string> members = {};  // names of workers, by rank
  std::string averagedBy = {};            // CommHook::description of the hook that averages
  std::vector<DdpStep> recent = {};       // the last kRecentSteps, the oldest first

  // Since the construction, or since the last rebind():
  DdpTimes total = {};
  uint64_t averagedPasses = 0;
  uint64_t skippedPasses = 0;  // of these: this rank had had no batch since the one before (skipPass, Join::finish)
  uint64_t failedPasses = 0;   // begun here, without averages; those that kStopAtFirst drops are among them
  uint64_t localPasses = 0;    // under noSync()
  std::vector<uint64_t> latestPasses = {};  // by rank: in how many it was the latest

  // Names of those that had no gradient on any rank in the last averaged pass for which some rank had a batch.
  std::vector<std::string> unusedParameters = {};
};

// A table of the recent steps for a reader, and in its last line what to do about `exposed`. Several lines, each with a
// newline. No format to be parsed.
std::string describe(const DdpStats& stats);

}  // namespace treadle

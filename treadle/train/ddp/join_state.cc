#include "treadle/train/ddp/join_state.h"

#include <algorithm>

#include "treadle/core/base/listed.h"

namespace treadle::ddp {
namespace {

constexpr size_t kNamedRanks = 8;  // in one message

std::string rankInWords(size_t rank, const ProcessGroup& group) {
  return "'" + group.members()[rank] + "' (rank " + std::to_string(rank) + ")";
}

std::string guardInWords(const JoinReport& report) {
  return report.mode ? std::string("is in a guard of join() with UnevenInputs::") + nameOf(*report.mode)
                     : "is in no guard of join()";
}

Status checkAlike(const std::vector<RankReport>& reports, const ProcessGroup& group) {
  const auto other = std::find_if(reports.begin(), reports.end(),
                                  [&](const RankReport& one) { return one.join.mode != reports.front().join.mode; });
  if (other == reports.end()) return {};
  return failedPrecondition("worker " + rankInWords(0, group) + " " + guardInWords(reports.front().join) +
                            ", and worker " + rankInWords(static_cast<size_t>(other - reports.begin()), group) + " " +
                            guardInWords(other->join) + ": call join() with the same arguments on all ranks, and end " +
                            "its guard by finish() on all");
}

std::vector<size_t> doneRanks(const std::vector<RankReport>& reports) {
  std::vector<size_t> done;
  for (size_t rank = 0; rank < reports.size(); ++rank)
    if (reports[rank].join.isDone) done.push_back(rank);
  return done;
}

Status unevenEnd(const std::vector<size_t>& done, const ProcessGroup& group) {
  return failedPrecondition(
      "ranks have different numbers of batches, and join() was given UnevenInputs::kThrow: no batch is left on " +
      listed(done, kNamedRanks, [&](size_t rank) { return rankInWords(rank, group); }));
}

}  // namespace

const char* nameOf(UnevenInputs mode) {
  switch (mode) {
    case UnevenInputs::kContinue: return "kContinue";
    case UnevenInputs::kThrow: return "kThrow";
    case UnevenInputs::kStopAtFirst: break;
  }
  return "kStopAtFirst";
}

Status JoinState::open(UnevenInputs mode) {
  if (isOpen()) return failedPrecondition("a guard of join() lives already: end it by finish() before the next one");
  own_.mode = mode;
  return {};
}

Status JoinState::checkMayBegin() const {
  if (!isOver_) return {};
  return failedPrecondition(
      "the guard of join() is over, because a rank has no batch left: leave the loop where its isOver() is true, and "
      "call finish()");
}

Status JoinState::checkMayHaveBatch() const {
  if (!own_.isDone) return {};
  return failedPrecondition(
      "finish() was called for the guard of join(), so this rank has no batch left: call finish() again, which goes on "
      "with the passes of the other ranks");
}

Status JoinState::checkMayAverage(bool isDistributed) const {
  if (!isOpen() || !isDistributed) return {};
  return failedPrecondition(
      "a distributed backward pass cannot be averaged while a guard of join() lives, as ranks without a batch have no "
      "part in it: call loss.backward(), or skipPass(context) on these ranks in place of join()");
}

Status JoinState::learn(const std::vector<RankReport>& reports, const ProcessGroup& group) {
  TREADLE_RETURN_IF_ERROR(checkAlike(reports, group));
  if (!isOpen()) return {};
  const std::vector<size_t> done = doneRanks(reports);
  const bool areAllDone = done.size() == reports.size();
  isOver_ = areAllDone || (!done.empty() && own_.mode != UnevenInputs::kContinue);
  if (areAllDone || !isOver_) return {};
  isDropped_ = own_.mode == UnevenInputs::kStopAtFirst;
  if (!isDropped_) return unevenEnd(done, group);
  return cancelled("the pass is dropped on all ranks, because no batch is left on one (UnevenInputs::kStopAtFirst)");
}

}  // namespace treadle::ddp

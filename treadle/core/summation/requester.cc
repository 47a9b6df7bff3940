#include "treadle/core/summation/requester.h"

#include "treadle/core/base/check.h"

namespace treadle::summation {

Requester::Requester(const Declaration& declaration, size_t machines)
    : declaration_(declaration), states_(declaration.parts.size()), announcements_(machines), grants_(machines) {}

void Requester::announce(size_t part, MutableBytes data) {
  State& state = states_[part];
  TREADLE_CHECK(!state.isUnderWay && data.size() == declaration_.parts[part].bytes(),
                "the data of a part whose sum has not ended, or other data");
  state = {.round = state.round, .data = data, .isUnderWay = true};
  announcements_[declaration_.parts[part].machine].insert(part);
}

Status Requester::granted(Machine machine, const Frame& grant) {
  const std::optional<size_t> part = declaration_.partAt(grant.tensor, grant.offset);
  if (!part || declaration_.parts[*part].machine != machine || declaration_.parts[*part].begin != grant.offset)
    return neverSent("a grant of a part that it does not sum");
  State& state = states_[*part];
  if (!state.isAnnounced || state.isGranted || grant.round != state.round)
    return neverSent("a grant of a part that this worker has not announced");
  state.isGranted = true;
  grants_[machine].insert(*part);
  return {};
}

// A sum of what this worker has not sent would replace it.
Result<MutableBytes> Requester::roomFor(Machine machine, const Frame& sum) {
  const std::optional<size_t> part = declaration_.partAt(sum.tensor, sum.offset);
  if (!part || declaration_.parts[*part].machine != machine) return neverSent("the sum of a part that it does not sum");
  const State& state = states_[*part];
  if (!state.isGranted || sum.round != state.round || state.arrived >= state.written ||
      sum.offset != declaration_.beginOf(*part, state.arrived) ||
      sum.sizeBytes != declaration_.bytesOf(*part, state.arrived))
    return neverSent("another piece of a sum than the next one");
  return declaration_.pieceOf(*part, state.arrived, state.data);
}

std::optional<size_t> Requester::arrived(const Frame& sum) {
  const size_t part = declaration_.partAt(sum.tensor, sum.offset).value();
  State& state = states_[part];
  if (++state.arrived < declaration_.piecesOf(part)) return {};
  state = {.round = state.round + 1};
  return part;
}

std::optional<size_t> Requester::next(Machine machine) const {
  if (!announcements_[machine].empty()) return 0;
  return grants_[machine].empty() ? std::nullopt : std::optional(*grants_[machine].begin());
}

std::optional<Outgoing> Requester::take(Machine machine) {
  if (!announcements_[machine].empty()) {
    const size_t part = *announcements_[machine].begin();
    announcements_[machine].erase(announcements_[machine].begin());
    states_[part].isAnnounced = true;
    return outgoingOfPart(FrameKind::kAnnounce, declaration_, part, states_[part].round);
  }
  if (grants_[machine].empty()) return {};
  const size_t part = *grants_[machine].begin();
  State& state = states_[part];
  const uint64_t piece = state.taken++;
  if (state.taken == declaration_.piecesOf(part)) grants_[machine].erase(grants_[machine].begin());
  return outgoingPiece(FrameKind::kAddend, declaration_, part, state.round, piece, state.data);
}

void Requester::written(const Outgoing& frame) {
  if (frame.frame.kind == FrameKind::kAddend) ++states_[frame.part].written;
}

}  // namespace treadle::summation

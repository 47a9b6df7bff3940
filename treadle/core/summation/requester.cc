#include "treadle/core/summation/requester.h"

#include <algorithm>

#include "treadle/core/base/check.h"

namespace treadle::summation {

Requester::Requester(const Declaration& declaration, Machine self, size_t machines)
    : declaration_(declaration),
      self_(self),
      states_(declaration.parts.size()),
      haves_(machines),
      announcements_(machines),
      grants_(machines) {}

void Requester::announce(size_t part, MutableBytes data) {
  State& state = states_[part];
  TREADLE_CHECK(!state.isUnderWay && data.size() == declaration_.parts[part].bytes(),
                "the data of a part whose sum has not ended, or other data");
  state.data = data;
  state.isUnderWay = true;
  if (!state.isAgain) offerIfReady(part);
}

void Requester::offerIfReady(size_t part) {
  const State& state = states_[part];
  if (state.isMoving || !(state.isAgain || state.isUnderWay)) return;
  const Machine machine = declaration_.parts[part].machine;
  if (machine == self_) {
    own_.push_back({part, state.offeredRound(), state.offered().first(declaration_.parts[part].bytes())});
  } else {
    announcements_[machine].insert(part);
  }
}

void Requester::moved(size_t part, Machine from) {
  for (auto* some : {&haves_, &announcements_, &grants_}) (*some)[from].erase(part);
  restore(part);
  State& state = states_[part];
  state.isMoving = true;
  if (declaration_.mode.isAsynchronous) state.version.resize(declaration_.workers);
  const Machine machine = declaration_.parts[part].machine;
  if (machine == self_) {
    own_.push_back({.part = part, .round = state.round, .version = &state.version});
  } else {
    haves_[machine].insert(part);
  }
}

// The data is again what it was before the exchange with the machine that is lost.
void Requester::restore(size_t part) {
  State& state = states_[part];
  for (uint64_t piece = 0; piece < state.exchange.copied; ++piece)
    std::ranges::copy(declaration_.pieceOf(part, piece, state.copy),
                      declaration_.pieceOf(part, piece, state.data).begin());
  if (!state.hasCopyOfLast()) giveBack(&state.copy);
  giveBack(&state.spare);
  state.isAgain = false;
  endExchange(state);
}

void Requester::setInMotion(State& state, bool isInMotion) {
  if (std::exchange(state.exchange.isInMotion, isInMotion) != isInMotion) isInMotion ? ++inMotion_ : --inMotion_;
}

void Requester::endExchange(State& state) {
  setInMotion(state, false);
  state.exchange = {};
}

void Requester::giveBack(MutableBytes* memory) {
  if (!memory->empty()) memory_.giveBack(std::exchange(*memory, {}));
}

Status Requester::granted(Machine machine, const Frame& grant) {
  const std::optional<size_t> part = declaration_.partBegunBy(grant, machine);
  if (!part) return neverSent("a grant of a part that it does not sum");
  State& state = states_[*part];
  // Or the copy of the round before would be lost.
  const bool mayKeep = state.copy.empty() || state.isAgain || isAnswered(*part);
  if (!state.exchange.isAnnounced || state.exchange.isGranted || grant.round != state.offeredRound() || !mayKeep)
    return neverSent("a grant of a part that this worker has not announced");
  state.exchange.isGranted = true;
  setInMotion(state, true);
  grants_[machine].insert(*part);
  return {};
}

Status Requester::released(Machine machine, const Frame& release) {
  const std::optional<size_t> part = declaration_.partBegunBy(release, machine);
  if (!part) return neverSent("the release of a part that it does not sum");
  const bool isAwaited = states_[*part].isMoving || !declaration_.mode.isAsynchronous;
  if (!isAwaited || !isDue(states_[*part], release.round)) return neverSent("the release of a part that is not due");
  this->release(*part, release.round);
  return {};
}

// The count of another worker may be a lie.
Status Requester::releasedOwn(size_t part, uint64_t round) {
  if (!isDue(states_[part], round)) return dataLoss("a worker reports that it lacks a sum which all workers have");
  release(part, round);
  return {};
}

bool Requester::isDue(const State& state, uint64_t releasedRound) const {
  const bool isNext = releasedRound == state.round;
  if (!state.isMoving) return isNext && state.hasCopyOfLast() && !state.isAgain;
  return isNext || (releasedRound + 1 == state.round && state.hasCopyOfLast());
}

void Requester::release(size_t part, uint64_t round) {
  State& state = states_[part];
  const bool isLacking = round != state.round;  // others lack the sum of the round before
  const bool isMoved = std::exchange(state.isMoving, false);
  if (isLacking && state.awaitsAll) return undo(part);
  if (!isLacking && state.hasCopyOfLast() && !isAnswered(part)) giveBack(&state.copy);
  if (!isLacking && std::exchange(state.awaitsAll, false)) return finish(part);
  if (!isMoved) return;
  state.isAgain = isLacking;
  offerIfReady(part);
}

// Another sum takes the place of the one that is there.
void Requester::undo(size_t part) {
  State& state = states_[part];
  std::ranges::copy(state.copy.first(state.data.size()), state.data.begin());
  giveBack(&state.copy);
  state.awaitsAll = false;
  --state.round;
  offerIfReady(part);
}

// A sum of what this worker has not sent would replace it.
Result<MutableBytes> Requester::roomFor(Machine machine, const Frame& sum) {
  const std::optional<size_t> part = declaration_.partOf(sum, machine);
  if (!part) return neverSent("the sum of a part that it does not sum");
  State& state = states_[*part];
  State::Exchange& exchange = state.exchange;
  if (sum.kind == FrameKind::kVersion) return roomForVersion(*part, sum);
  if (isAnswered(*part) && !exchange.hasVersion) return neverSent("an answer without its version");
  if (!exchange.isGranted || sum.round != state.offeredRound() || exchange.arrived >= exchange.written ||
      !declaration_.isPiece(sum, *part, exchange.arrived))
    return neverSent("another piece of a sum than the next one");
  setInMotion(state, true);
  if (state.isAgain || isAnswered(*part)) {
    if (state.spare.empty()) state.spare = memory_.take(declaration_.parts[*part].bytes());
    return declaration_.pieceOf(*part, exchange.arrived, state.spare);
  }
  const MutableBytes room = declaration_.pieceOf(*part, exchange.arrived, state.data);
  if (isKept(*part)) {
    if (state.copy.empty()) state.copy = memory_.take(declaration_.parts[*part].bytes());
    std::ranges::copy(room, declaration_.pieceOf(*part, exchange.arrived, state.copy).begin());
    exchange.copied = exchange.arrived + 1;
  }
  return room;
}

// It comes once all of the data has gone.
Result<MutableBytes> Requester::roomForVersion(size_t part, const Frame& frame) {
  State& state = states_[part];
  State::Exchange& exchange = state.exchange;
  const bool isDue = isAnswered(part) && exchange.written == declaration_.piecesOf(part) && !exchange.hasVersion;
  if (!isDue || frame.round != state.offeredRound() || frame.offset != declaration_.parts[part].begin ||
      frame.sizeBytes != versionBytes(declaration_.workers))
    return neverSent("the version of an answer that is not due");
  state.nextVersion.resize(declaration_.workers);
  return bytesOf(state.nextVersion);
}

Status Requester::arrived(const Frame& sum) {
  const size_t part = declaration_.partAt(sum.tensor, sum.offset).value();
  State& state = states_[part];
  if (sum.kind == FrameKind::kVersion) {
    if (state.nextVersion[self_] != sum.round + 1) return neverSent("an answer without this worker's data");
    state.exchange.hasVersion = true;
  } else if (++state.exchange.arrived == declaration_.piecesOf(part)) {
    ended(part);
  }
  return {};
}

// The machine has summed what this worker offered.
void Requester::ended(size_t part) {
  State& state = states_[part];
  endExchange(state);
  if (std::exchange(state.isAgain, false)) {
    giveBack(&state.spare);
    if (!isKept(part)) giveBack(&state.copy);
    return offerIfReady(part);
  }
  ++state.round;
  if (isAnswered(part)) {
    takeAnswer(part);
  } else if (isKept(part)) {
    haves_[declaration_.parts[part].machine].insert(part);
  }
  mayBeMadeAnew(part) ? void(state.awaitsAll = true) : finish(part);
}

// Only when all of it is there: the machine may be lost until then, and the data is needed again.
void Requester::takeAnswer(size_t part) {
  State& state = states_[part];
  std::ranges::copy(state.spare.first(state.data.size()), state.data.begin());
  std::swap(state.copy, state.spare);
  giveBack(&state.spare);
  state.version.swap(state.nextVersion);
}

void Requester::finish(size_t part) {
  State& state = states_[part];
  state.isUnderWay = false;
  state.data = {};
  done_.push_back(part);
}

std::optional<size_t> Requester::next(Machine machine) const {
  if (!haves_[machine].empty() || !announcements_[machine].empty()) return 0;
  return grants_[machine].empty() ? std::nullopt : std::optional(*grants_[machine].begin());
}

std::optional<Outgoing> Requester::take(Machine machine) {
  for (auto* some : {&haves_, &announcements_}) {
    std::set<size_t>& parts = (*some)[machine];
    if (parts.empty()) continue;
    const size_t part = parts.extract(parts.begin()).value();
    State& state = states_[part];
    if (some == &haves_ && declaration_.mode.isAsynchronous)
      return outgoingVersion(declaration_, part, state.round, state.version);
    if (some == &haves_) return outgoingOfPart(FrameKind::kHave, declaration_, part, state.round);
    state.exchange.isAnnounced = true;
    return outgoingOfPart(FrameKind::kAnnounce, declaration_, part, state.offeredRound());
  }
  if (grants_[machine].empty()) return {};
  const size_t part = *grants_[machine].begin();
  State& state = states_[part];
  const uint64_t piece = state.exchange.taken++;
  if (state.exchange.taken == declaration_.piecesOf(part)) grants_[machine].erase(grants_[machine].begin());
  return outgoingPiece(FrameKind::kAddend, declaration_, part, state.offeredRound(), piece, state.offered());
}

void Requester::written(const Outgoing& frame) {
  if (frame.frame.kind != FrameKind::kAddend) return;
  State& state = states_[frame.part];
  const bool isLast = ++state.exchange.written == declaration_.piecesOf(frame.part);
  if (isLast && declaration_.mode.isAsynchronous) setInMotion(state, false);  // the answer may wait for other workers
}

}  // namespace treadle::summation

#include "treadle/core/summation/synchronous_adder.h"

#include <algorithm>

#include "treadle/core/base/check.h"
#include "treadle/core/summation/packing.h"
#include "treadle/core/summation/sum.h"

namespace treadle::summation {

SynchronousAdder::SynchronousAdder(const Declaration& declaration, Machine machine, uint64_t grantBytes)
    : Adder(declaration, machine, grantBytes),
      states_(declaration.parts.size()),
      releases_(declaration.workers),
      grants_(declaration.workers),
      sums_(declaration.workers) {
  for (size_t part = 0; part < states_.size(); ++part)
    if (declaration.parts[part].machine == machine) std::ranges::fill(prepared(part).has, 0);
}

// That is summed here, or may be.
SynchronousAdder::State& SynchronousAdder::prepared(size_t part) {
  State& state = states_[part];
  state.announced.resize(declaration_.workers);
  state.has.resize(declaration_.workers);
  return state;
}

Status SynchronousAdder::announced(size_t worker, const Frame& announce) {
  if (!isElsewhere(worker)) return neverSent("an announcement, though it is no worker,");
  const std::optional<size_t> part = declaration_.partBegunBy(announce, machine_);
  if (!part) return neverSent("an announcement of a part that this machine does not sum");
  const State& state = states_[*part];
  const bool isStillDue = state.isOpen && state.written[worker] < declaration_.piecesOf(*part);
  const bool hasReported = !isServer(machine_) || state.has[worker] >= announce.round;  // that it has the round before
  if (announce.round != state.nextRound || state.announced[worker] || isStillDue || state.isMoving || !hasReported)
    return neverSent("an announcement of round " + std::to_string(announce.round) + " where round " +
                     std::to_string(state.nextRound) + " was next");
  this->announce(worker, *part);
  return {};
}

Status SynchronousAdder::had(size_t worker, const Frame& have) {
  if (!isElsewhere(worker)) return neverSent("what it has of a sum, though it is no worker,");
  const std::optional<size_t> part = declaration_.partAt(have.tensor, have.offset);
  if (!part || declaration_.parts[*part].begin != have.offset || !mayHave(worker, *part, have.round))
    return neverSent("that it has a sum which it cannot have");
  prepared(*part).has[worker] = have.round;
  releaseIfAllHave(*part);
  return {};
}

// A worker may hear that a part has moved to here before this machine does. No worker is more than a round ahead.
bool SynchronousAdder::mayHave(size_t worker, size_t part, uint64_t round) const {
  const State& state = states_[part];
  const Machine machine = declaration_.parts[part].machine;
  if (state.isMoving || (machine != machine_ && isServer(machine))) {
    const auto mayBoth = [round](const std::optional<uint64_t>& other) {
      return !other || std::max(*other, round) - std::min(*other, round) <= 1;
    };
    return (state.has.empty() || !state.has[worker]) && std::all_of(state.has.begin(), state.has.end(), mayBoth);
  }
  const bool hasComeToIt = !state.isOpen || state.written[worker] == declaration_.piecesOf(part);
  return machine == machine_ && isServer(machine_) && round == state.nextRound && round == *state.has[worker] + 1 &&
         hasComeToIt;
}

Status SynchronousAdder::hadOwn(size_t part, uint64_t round, const Version& /*version*/) {
  prepared(part).has[machine_] = round;
  releaseIfAllHave(part);
  return {};
}

Status SynchronousAdder::adopt(size_t part) {
  prepared(part).isMoving = true;
  releaseIfAllHave(part);
  return {};
}

// After the last piece of the sum, which a worker may have had before, has left for all.
void SynchronousAdder::releaseIfAllHave(size_t part) {
  State& state = states_[part];
  if (state.isOpen || declaration_.parts[part].machine != machine_ ||
      !std::all_of(state.has.begin(), state.has.end(), [](const auto& one) { return one.has_value(); }))
    return;
  const uint64_t round = std::min_element(state.has.begin(), state.has.end())->value();
  const bool isMoved = std::exchange(state.isMoving, false);
  if (!isMoved && round != state.nextRound) return;
  state.nextRound = state.released = round;
  // Who has the lost server's sum gives it up for the one that is made here.
  if (isMoved && packingOf(part).hasKeptSums()) std::ranges::fill(state.has, round);
  for (size_t worker = 0; worker < declaration_.workers; ++worker)
    if (!isOwn(worker)) releases_[worker].insert(part);
  if (!isServer(machine_)) releasedOwn_.emplace_back(part, round);
}

void SynchronousAdder::announceOwn(size_t part, MutableBytes data) {
  State& state = states_[part];
  TREADLE_CHECK(machine_ < declaration_.workers && declaration_.parts[part].machine == machine_ &&
                    !state.ownIsUnderWay && data.size() == declaration_.parts[part].bytes(),
                "the data of a part whose sum has not ended, or other data");
  state.own = data;
  state.ownIsUnderWay = true;
  announce(machine_, part);
}

void SynchronousAdder::announce(size_t worker, size_t part) {
  State& state = states_[part];
  state.announced[worker] = true;
  if (++state.announcements < declaration_.workers) return;
  ready_.insert(part);
  grantMore();
}

// The first one is waited for where it does not fit.
void SynchronousAdder::grantMore() {
  while (!ready_.empty() && fits(*ready_.begin())) open(ready_.extract(ready_.begin()).value());
}

bool SynchronousAdder::fits(size_t part) const {
  if (open_.empty()) return true;
  const uint64_t reserved = part < *open_.begin() ? 0 : grantBytes_ / 4;
  return openBytes_ + PartMemory::sizeFor(declaration_.parts[part].bytes()) <= grantBytes_ - reserved;
}

void SynchronousAdder::open(size_t part) {
  State& state = states_[part];
  const size_t workers = declaration_.workers;
  const uint64_t bytes = declaration_.parts[part].bytes();
  if (const Packing& packing = packingOf(part); packing.hasKeptSums())
    state.kept.resize(packing.elementsIn(declaration_.parts[part].begin, declaration_.parts[part].end));
  std::vector<MutableBytes> addends;
  for (size_t worker = 0; worker < workers; ++worker)
    addends.push_back(isOwn(worker) ? state.own : memory_.take(bytes));
  state.addends = std::move(addends);
  state.isOpen = true;
  ++state.nextRound;
  state.announced.assign(workers, false);
  state.announcements = 0;
  state.summed = 0;
  for (auto* counts : {&state.arrived, &state.taken, &state.written}) counts->assign(workers, 0);
  for (size_t worker = 0; worker < workers; ++worker)
    if (!isOwn(worker)) grants_[worker].insert(part);
  if (machine_ < workers) state.arrived[machine_] = declaration_.piecesOf(part);
  open_.insert(part);
  openBytes_ += PartMemory::sizeFor(bytes);
  advance(part);
}

Result<MutableBytes> SynchronousAdder::roomFor(size_t worker, const Frame& addend) {
  if (addend.kind == FrameKind::kVersion) return neverSent("the version of a sum that has none");
  if (!isElsewhere(worker)) return neverSent("data, though it is no worker,");
  const std::optional<size_t> part = declaration_.partAt(addend.tensor, addend.offset);
  if (!part || !states_[*part].isOpen || addend.round + 1 != states_[*part].nextRound)
    return neverSent("data of a part that was not granted");
  const State& state = states_[*part];
  const uint64_t piece = state.arrived[worker];
  if (!declaration_.isPiece(addend, *part, piece)) return neverSent("another piece of a part than the next one");
  return declaration_.pieceOf(*part, piece, state.addends[worker]);
}

void SynchronousAdder::arrived(size_t worker, const Frame& addend) {
  const size_t part = declaration_.partAt(addend.tensor, addend.offset).value();
  ++states_[part].arrived[worker];
  advance(part);
  grantMore();
}

void SynchronousAdder::advance(size_t part) {
  State& state = states_[part];
  const uint64_t complete = *std::min_element(state.arrived.begin(), state.arrived.end());
  if (complete == state.summed) return;
  for (; state.summed < complete; ++state.summed) addPiece(part, state.summed);
  for (size_t worker = 0; worker < declaration_.workers; ++worker)
    if (!isOwn(worker) && state.taken[worker] < state.summed) sums_[worker].insert(part);
  closeIfWritten(part);
}

void SynchronousAdder::addPiece(size_t part, uint64_t piece) {
  const State& state = states_[part];
  addends_.clear();
  for (const MutableBytes& one : state.addends) addends_.push_back(declaration_.pieceOf(part, piece, one).data());
  const Declaration::Tensor& tensor = declaration_.tensors[declaration_.parts[part].tensor];
  const MutableBytes result = declaration_.pieceOf(part, piece, sumOf(state));
  if (tensor.packing.hasKeptSums()) return addChunks(part, piece, result);
  sum(tensor.summedAs(), addends_, result.size() / sizeOf(tensor.summedAs()), result.data());
}

void SynchronousAdder::addChunks(size_t part, uint64_t piece, MutableBytes result) {
  const Part& where = declaration_.parts[part];
  const Packing& packing = packingOf(part);
  const uint64_t ofPart = where.begin / kChunkBytes, first = declaration_.beginOf(part, piece) / kChunkBytes;
  for (uint64_t chunk = first; chunk < first + result.size() / kChunkBytes; ++chunk) {
    const uint64_t keptAt = (chunk - ofPart) * packing.chunkElements;
    addPacked(packing, addends_, std::span(states_[part].kept).subspan(keptAt, packing.elementsOf(chunk)),
              result.data() + (chunk - first) * kChunkBytes);
    for (const std::byte*& addend : addends_) addend += kChunkBytes;
  }
}

std::vector<std::pair<size_t, uint64_t>> SynchronousAdder::awaited() const {
  std::vector<std::pair<size_t, uint64_t>> all;
  for (size_t part = 0; part < states_.size(); ++part) {
    const State& state = states_[part];
    if (state.announcements > 0 && state.announcements < declaration_.workers) all.emplace_back(part, state.nextRound);
    if (state.isMoving) all.emplace_back(part, kMoves);
  }
  return all;
}

std::vector<size_t> SynchronousAdder::missing(size_t part) const {
  std::vector<size_t> workers;
  const State& state = states_[part];
  for (size_t worker = 0; worker < declaration_.workers; ++worker)
    if (state.isMoving ? !state.has[worker] : !state.announced[worker]) workers.push_back(worker);
  return workers;
}

std::optional<size_t> SynchronousAdder::next(size_t worker) const {
  if (!releases_[worker].empty() || !grants_[worker].empty()) return 0;
  return sums_[worker].empty() ? std::nullopt : std::optional(*sums_[worker].begin());
}

std::optional<Outgoing> SynchronousAdder::take(size_t worker) {
  if (auto& parts = releases_[worker]; !parts.empty()) {
    const size_t part = parts.extract(parts.begin()).value();
    return outgoingOfPart(FrameKind::kRelease, declaration_, part, states_[part].released);
  }
  if (auto& parts = grants_[worker]; !parts.empty()) {
    const size_t part = parts.extract(parts.begin()).value();
    return outgoingOfPart(FrameKind::kGrant, declaration_, part, states_[part].nextRound - 1);
  }
  if (sums_[worker].empty()) return {};
  const size_t part = *sums_[worker].begin();
  State& state = states_[part];
  const uint64_t piece = state.taken[worker]++;
  if (state.taken[worker] == state.summed) sums_[worker].erase(sums_[worker].begin());
  return outgoingPiece(FrameKind::kSum, declaration_, part, state.nextRound - 1, piece, sumOf(state));
}

void SynchronousAdder::written(size_t worker, const Outgoing& frame) {
  if (frame.frame.kind != FrameKind::kSum) return;
  ++states_[frame.part].written[worker];
  closeIfWritten(frame.part);
  grantMore();
}

// Nobody needs its memory any more.
void SynchronousAdder::closeIfWritten(size_t part) {
  State& state = states_[part];
  const uint64_t pieces = declaration_.piecesOf(part);
  if (state.summed < pieces) return;
  for (size_t worker = 0; worker < declaration_.workers; ++worker)
    if (!isOwn(worker) && state.written[worker] < pieces) return;
  for (size_t worker = 0; worker < declaration_.workers; ++worker)
    if (!isOwn(worker)) memory_.giveBack(state.addends[worker]);
  if (state.ownIsUnderWay) done_.push_back(part);
  state.isOpen = state.ownIsUnderWay = false;
  ++sumsMade_;
  open_.erase(part);
  openBytes_ -= PartMemory::sizeFor(declaration_.parts[part].bytes());
  releaseIfAllHave(part);
}

}  // namespace treadle::summation

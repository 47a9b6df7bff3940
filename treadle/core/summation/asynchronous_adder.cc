#include "treadle/core/summation/asynchronous_adder.h"

#include <algorithm>
#include <array>
#include <numeric>

#include "treadle/core/base/check.h"
#include "treadle/core/summation/sum.h"

namespace treadle::summation {
AsynchronousAdder::AsynchronousAdder(const Declaration& declaration, Machine machine, uint64_t grantBytes)
    : Adder(declaration, machine, grantBytes),
      states_(declaration.parts.size()),
      hasLeft_(declaration.workers),
      openBytes_(declaration.workers),
      due_(declaration.workers),
      announced_(declaration.workers),
      releases_(declaration.workers),
      grants_(declaration.workers),
      sums_(declaration.workers) {
  for (size_t part = 0; part < states_.size(); ++part)
    if (declaration.parts[part].machine == machine) states_[part].exchanges.resize(declaration.workers);
}

Status AsynchronousAdder::announced(size_t worker, const Frame& announce) {
  if (!isElsewhere(worker)) return neverSent("an announcement, though it is no worker,");
  const std::optional<size_t> part = declaration_.partBegunBy(announce, machine_);
  if (!part) return neverSent("an announcement of a part that this machine does not sum");
  if (moves_.contains(*part) && !isGivenBy(*part, worker)) return neverSent("an announcement of a part that moves");
  if (hasLeft_[worker] && !moves_.contains(*part)) return neverSent("an announcement, though it has left,");
  Exchange& exchange = states_[*part].exchanges[worker];
  if (exchange.stage != Stage::kNone || announce.round != exchange.given)
    return neverSent("an announcement of round " + std::to_string(announce.round) + " where round " +
                     std::to_string(exchange.given) + " was next");
  exchange.stage = Stage::kAnnounced;
  announced_[worker].insert(*part);
  proceed(worker);
  return {};
}

// Answers go first, and then grants. The first one is waited for where it does not fit.
void AsynchronousAdder::proceed(size_t worker) {
  for (std::set<size_t>* parts : {&due_[worker], &announced_[worker]}) {
    while (!parts->empty()) {
      const size_t part = *parts->begin();
      if (!takeMemory(worker, part)) return;
      parts->erase(parts->begin());
      Exchange& exchange = states_[part].exchanges[worker];
      if (exchange.stage == Stage::kAnswerDue) {
        answer(worker, part);
      } else {
        exchange.stage = Stage::kGranted;
        exchange.arrived = 0;
        grants_[worker].insert(part);
      }
    }
  }
}

// False: there is too little left of its limit.
bool AsynchronousAdder::takeMemory(size_t worker, size_t part) {
  const uint64_t bytes = PartMemory::sizeFor(declaration_.parts[part].bytes());
  if (openBytes_[worker] > 0 && openBytes_[worker] + bytes > grantBytes_) return false;
  states_[part].exchanges[worker].data = memory_.take(bytes);
  openBytes_[worker] += bytes;
  return true;
}

void AsynchronousAdder::giveMemoryBack(size_t worker, size_t part) {
  MutableBytes& data = states_[part].exchanges[worker].data;
  openBytes_[worker] -= data.size();
  memory_.giveBack(std::exchange(data, {}));
}

Result<MutableBytes> AsynchronousAdder::roomFor(size_t worker, const Frame& addend) {
  if (addend.kind == FrameKind::kVersion) return roomForReport(worker, addend);
  if (!isElsewhere(worker)) return neverSent("data, though it is no worker,");
  const std::optional<size_t> part = declaration_.partOf(addend, machine_);
  if (!part) return neverSent("data of a part that this machine does not sum");
  const Exchange& exchange = states_[*part].exchanges[worker];
  if (exchange.stage != Stage::kGranted || addend.round != exchange.given)
    return neverSent("data of a part that was not granted");
  if (!declaration_.isPiece(addend, *part, exchange.arrived))
    return neverSent("another piece of a part than the next one");
  return declaration_.pieceOf(*part, exchange.arrived, exchange.data);
}

void AsynchronousAdder::arrived(size_t worker, const Frame& addend) {
  const size_t part = declaration_.partOf(addend, machine_).value();
  if (++states_[part].exchanges[worker].arrived == declaration_.piecesOf(part)) add(worker, part);
}

void AsynchronousAdder::announceOwn(size_t part, MutableBytes data) {
  Exchange& exchange = states_[part].exchanges[machine_];
  TREADLE_CHECK(exchange.stage == Stage::kNone && data.size() == declaration_.parts[part].bytes(),
                "the data of a part whose sum has not ended, or other data");
  exchange.data = data;
  add(machine_, part);
}

void AsynchronousAdder::add(size_t worker, size_t part) {
  State& state = states_[part];
  Exchange& exchange = state.exchanges[worker];
  const MutableBytes data = dataOf(part, exchange.data);
  if (state.sum.empty()) {
    state.sum = memory_.take(data.size());
    std::ranges::copy(data, state.sum.begin());
  } else if (!std::exchange(exchange.isInSum, false)) {
    const group::DataType type = declaration_.tensors[declaration_.parts[part].tensor].type;
    sum(type, std::array<const std::byte*, 2>{state.sum.data(), data.data()}, data.size() / sizeOf(type),
        state.sum.data());
  }
  if (!isOwn(worker)) giveMemoryBack(worker, part);
  exchange.stage = Stage::kAdded;
  ++exchange.given;
  if (isGivenBy(part, worker)) goOn(part, worker);
  answerAll(part);
  proceed(worker);
}

// Who may have an answer now.
void AsynchronousAdder::answerAll(size_t part) {
  const State& state = states_[part];
  waiting_.erase(part);
  for (size_t worker = 0; worker < declaration_.workers; ++worker) {
    if (state.exchanges[worker].stage != Stage::kAdded) continue;
    if (mustWait(state, state.exchanges[worker].given)) {
      waiting_.insert(part);
    } else if (isOwn(worker)) {
      answer(worker, part);
    } else {
      states_[part].exchanges[worker].stage = Stage::kAnswerDue;
      due_[worker].insert(part);
      proceed(worker);
    }
  }
}

// The answer to who has given the part so many times, for what another worker gives.
bool AsynchronousAdder::waitsFor(const State& state, uint64_t given, size_t worker) const {
  const uint64_t others = state.exchanges[worker].added(), staleness = declaration_.mode.staleness;
  if (worker == 0 && others == 0) return true;
  return !hasLeft_[worker] && given > others && given - others > staleness;
}

bool AsynchronousAdder::mustWait(const State& state, uint64_t given) const {
  for (size_t worker = 0; worker < declaration_.workers; ++worker)
    if (waitsFor(state, given, worker)) return true;
  return false;
}

void AsynchronousAdder::answer(size_t worker, size_t part) {
  Exchange& exchange = states_[part].exchanges[worker];
  std::ranges::copy(dataOf(part, states_[part].sum), exchange.data.begin());
  if (isOwn(worker)) {
    exchange.stage = Stage::kNone;
    ++sumsMade_;
    done_.push_back(part);
  } else {
    exchange.stage = Stage::kAnswered;
    exchange.taken = exchange.written = 0;
    if (isServer(machine_)) noteVersion(worker, part);
    sums_[worker].insert(part);
  }
}

void AsynchronousAdder::noteVersion(size_t worker, size_t part) {
  Exchange& exchange = states_[part].exchanges[worker];
  exchange.versionIsDue = true;
  exchange.version.clear();
  for (const Exchange& one : states_[part].exchanges) exchange.version.push_back(one.added());
}

void AsynchronousAdder::left(size_t worker) {
  hasLeft_[worker] = true;
  for (const size_t part : std::set<size_t>(waiting_)) answerAll(part);
}

// Those that have begun it are not late, however long their data takes.
std::vector<size_t> AsynchronousAdder::notBegunFor(const State& state, uint64_t given) const {
  std::vector<size_t> workers;
  for (size_t worker = 0; worker < declaration_.workers; ++worker)
    if (state.exchanges[worker].stage == Stage::kNone && waitsFor(state, given, worker)) workers.push_back(worker);
  return workers;
}

std::vector<std::pair<size_t, uint64_t>> AsynchronousAdder::awaited() const {
  std::vector<std::pair<size_t, uint64_t>> all;
  for (const size_t part : waiting_)
    for (const Exchange& exchange : states_[part].exchanges)
      if (exchange.stage == Stage::kAdded && !notBegunFor(states_[part], exchange.given).empty())
        all.emplace_back(part, exchange.given);
  for (const auto& [part, move] : moves_)
    if (move.isAdopted) all.emplace_back(part, kMoves);
  return all;
}

std::vector<size_t> AsynchronousAdder::missing(size_t part) const {
  if (const auto move = moves_.find(part); move != moves_.end()) return missing(move->second);
  std::set<size_t> workers;
  for (const Exchange& exchange : states_[part].exchanges) {
    if (exchange.stage != Stage::kAdded) continue;
    const std::vector<size_t> some = notBegunFor(states_[part], exchange.given);
    workers.insert(some.begin(), some.end());
  }
  return {workers.begin(), workers.end()};
}

std::optional<size_t> AsynchronousAdder::waitsInVain() const {
  const auto lacksFirst = [this](size_t part) { return states_[part].exchanges.front().added() == 0; };
  const auto found = hasLeft_.front() ? std::ranges::find_if(waiting_, lacksFirst) : waiting_.end();
  return found == waiting_.end() ? std::nullopt : std::optional(*found);
}

std::optional<size_t> AsynchronousAdder::next(size_t worker) const {
  if (!releases_[worker].empty() || !grants_[worker].empty()) return 0;
  return sums_[worker].empty() ? std::nullopt : std::optional(*sums_[worker].begin());
}

std::optional<Outgoing> AsynchronousAdder::take(size_t worker) {
  for (auto* some : {&releases_, &grants_}) {
    std::set<size_t>& parts = (*some)[worker];
    if (parts.empty()) continue;
    const size_t part = parts.extract(parts.begin()).value();
    const FrameKind kind = some == &releases_ ? FrameKind::kRelease : FrameKind::kGrant;
    return outgoingOfPart(kind, declaration_, part, states_[part].exchanges[worker].given);
  }
  if (sums_[worker].empty()) return {};
  const size_t part = *sums_[worker].begin();
  Exchange& exchange = states_[part].exchanges[worker];
  if (std::exchange(exchange.versionIsDue, false))
    return outgoingVersion(declaration_, part, exchange.given - 1, exchange.version);
  const uint64_t piece = exchange.taken++;
  if (exchange.taken == declaration_.piecesOf(part)) sums_[worker].erase(sums_[worker].begin());
  return outgoingPiece(FrameKind::kSum, declaration_, part, exchange.given - 1, piece, exchange.data);
}

void AsynchronousAdder::written(size_t worker, const Outgoing& frame) {
  if (frame.frame.kind != FrameKind::kSum) return;
  Exchange& exchange = states_[frame.part].exchanges[worker];
  if (++exchange.written < declaration_.piecesOf(frame.part)) return;
  giveMemoryBack(worker, frame.part);
  exchange.stage = Stage::kNone;
  ++sumsMade_;
  proceed(worker);
}

// ---- a part that moves to here

// A worker may hear that a part has moved to here before this machine does.
Result<MutableBytes> AsynchronousAdder::roomForReport(size_t worker, const Frame& frame) {
  if (!isElsewhere(worker)) return neverSent("a version, though it is no worker,");
  const std::optional<size_t> part = declaration_.partAt(frame.tensor, frame.offset);
  if (!part || declaration_.parts[*part].begin != frame.offset || frame.sizeBytes != versionBytes(declaration_.workers))
    return neverSent("the version of a part that there is not");
  const Machine machine = declaration_.parts[*part].machine;
  const auto move = moves_.find(*part);
  const bool mayMove = machine == machine_ ? move != moves_.end() : isServer(machine);
  if (!mayMove || (move != moves_.end() && move->second.reports[worker].isHere))
    return neverSent("the version of a part that does not move");
  Version& version = moveOf(*part).reports[worker].version;
  version.resize(declaration_.workers);
  return bytesOf(version);
}

AsynchronousAdder::Move& AsynchronousAdder::moveOf(size_t part) {
  return moves_.try_emplace(part, Move{.reports = std::vector<Move::Report>(declaration_.workers)}).first->second;
}

Status AsynchronousAdder::had(size_t worker, const Frame& have) {
  if (have.kind != FrameKind::kVersion) return neverSent("that it has a sum, in an asynchronous service,");
  const size_t part = declaration_.partAt(have.tensor, have.offset).value();
  Move::Report& report = moves_.at(part).reports[worker];
  if (report.version[worker] != have.round) return neverSent("a version of other data than it has given");
  report.isHere = true;
  report.round = have.round;
  return goOnIfAllReported(part);
}

Status AsynchronousAdder::hadOwn(size_t part, uint64_t round, const Version& version) {
  moveOf(part).reports[machine_] = {true, round, version};
  return goOnIfAllReported(part);
}

Status AsynchronousAdder::adopt(size_t part) {
  states_[part].exchanges.resize(declaration_.workers);
  moveOf(part).isAdopted = true;
  return goOnIfAllReported(part);
}

Status AsynchronousAdder::goOnIfAllReported(size_t part) {
  Move& move = moves_.at(part);
  const auto isHere = [](const Move::Report& one) { return one.isHere; };
  if (!move.isAdopted || !std::ranges::all_of(move.reports, isHere)) return {};
  const auto total = [](const Move::Report& one) {
    return std::accumulate(one.version.begin(), one.version.end(), uint64_t{0});
  };
  const auto last = std::ranges::max_element(move.reports, {}, total);
  TREADLE_RETURN_IF_ERROR(checkReports(part, *last));
  std::vector<Exchange>& exchanges = states_[part].exchanges;
  for (size_t worker = 0; worker < declaration_.workers; ++worker) {
    exchanges[worker].given = move.reports[worker].round;
    exchanges[worker].isInSum = last->version[worker] > exchanges[worker].given;
  }
  if (last->round == 0) {  // there are no answers
    goOn(part, declaration_.workers);
    return {};
  }
  const auto giver = static_cast<size_t>(last - move.reports.begin());
  move.giver = giver;
  --exchanges[giver].given;
  release(giver, part);
  return {};
}

// Answers are of one history: the last one contains what all the others do, and of each worker at most one more than
// it has had answers. Who has none has no version.
Status AsynchronousAdder::checkReports(size_t part, const Move::Report& last) const {
  for (size_t worker = 0; worker < declaration_.workers; ++worker) {
    const uint64_t added = last.version[worker], round = moves_.at(part).reports[worker].round;
    if (added < round || added - round > (last.round > 0 ? 1 : 0))
      return dataLoss("the answers of " + declaration_.textOf(declaration_.parts[part].tensor) +
                      " that workers report do not fit together");
  }
  return {};
}

// Who has not reported, or has not given its answer.
std::vector<size_t> AsynchronousAdder::missing(const Move& move) const {
  if (move.giver) return {*move.giver};
  std::vector<size_t> workers;
  for (size_t worker = 0; worker < declaration_.workers; ++worker)
    if (!move.reports[worker].isHere) workers.push_back(worker);
  return workers;
}

bool AsynchronousAdder::isGivenBy(size_t part, size_t worker) const {
  const auto move = moves_.find(part);
  return move != moves_.end() && move->second.giver == worker;
}

// Ends the move: releases the part to all workers but the giver, if there is one.
void AsynchronousAdder::goOn(size_t part, size_t giver) {
  moves_.erase(part);
  for (size_t worker = 0; worker < declaration_.workers; ++worker)
    if (worker != giver) release(worker, part);
}

void AsynchronousAdder::release(size_t worker, size_t part) {
  if (isOwn(worker)) {
    releasedOwn_.emplace_back(part, states_[part].exchanges[worker].given);
  } else {
    releases_[worker].insert(part);
  }
}

}  // namespace treadle::summation

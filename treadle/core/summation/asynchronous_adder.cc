#include "treadle/core/summation/asynchronous_adder.h"

#include <algorithm>
#include <array>

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
      grants_(declaration.workers),
      sums_(declaration.workers) {
  for (size_t part = 0; part < states_.size(); ++part)
    if (declaration.parts[part].machine == machine) states_[part].exchanges.resize(declaration.workers);
}

Status AsynchronousAdder::announced(size_t worker, const Frame& announce) {
  if (!isElsewhere(worker)) return neverSent("an announcement, though it is no worker,");
  const std::optional<size_t> part = declaration_.partBegunBy(announce, machine_);
  if (!part) return neverSent("an announcement of a part that this machine does not sum");
  if (hasLeft_[worker]) return neverSent("an announcement, though it has left,");
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
  } else {
    const group::DataType type = declaration_.tensors[declaration_.parts[part].tensor].type;
    sum(type, std::array<const std::byte*, 2>{state.sum.data(), data.data()}, data.size() / sizeOf(type),
        state.sum.data());
  }
  if (!isOwn(worker)) giveMemoryBack(worker, part);
  exchange.stage = Stage::kAdded;
  ++exchange.given;
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
  const uint64_t others = state.exchanges[worker].given, staleness = declaration_.mode.staleness;
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
    sums_[worker].insert(part);
  }
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
  return all;
}

std::vector<size_t> AsynchronousAdder::missing(size_t part) const {
  std::set<size_t> workers;
  for (const Exchange& exchange : states_[part].exchanges) {
    if (exchange.stage != Stage::kAdded) continue;
    const std::vector<size_t> some = notBegunFor(states_[part], exchange.given);
    workers.insert(some.begin(), some.end());
  }
  return {workers.begin(), workers.end()};
}

std::optional<size_t> AsynchronousAdder::waitsInVain() const {
  const auto lacksFirst = [this](size_t part) { return states_[part].exchanges.front().given == 0; };
  const auto found = hasLeft_.front() ? std::ranges::find_if(waiting_, lacksFirst) : waiting_.end();
  return found == waiting_.end() ? std::nullopt : std::optional(*found);
}

std::optional<size_t> AsynchronousAdder::next(size_t worker) const {
  if (!grants_[worker].empty()) return 0;
  return sums_[worker].empty() ? std::nullopt : std::optional(*sums_[worker].begin());
}

std::optional<Outgoing> AsynchronousAdder::take(size_t worker) {
  if (auto& parts = grants_[worker]; !parts.empty()) {
    const size_t part = parts.extract(parts.begin()).value();
    return outgoingOfPart(FrameKind::kGrant, declaration_, part, states_[part].exchanges[worker].given);
  }
  if (sums_[worker].empty()) return {};
  const size_t part = *sums_[worker].begin();
  Exchange& exchange = states_[part].exchanges[worker];
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

Status AsynchronousAdder::had(size_t /*worker*/, const Frame& /*have*/) {
  return neverSent("that it has a sum, in an asynchronous service,");
}

// A lost server ends an asynchronous service, so no part moves.
void AsynchronousAdder::adopt(size_t /*part*/) { TREADLE_CHECK(false, "a part of running sums moves"); }
void AsynchronousAdder::hadOwn(size_t /*part*/, uint64_t /*round*/) {
  TREADLE_CHECK(false, "a part of running sums moves");
}

}  // namespace treadle::summation

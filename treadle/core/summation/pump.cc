#include "treadle/core/summation/pump.h"

#include <algorithm>
#include <cfenv>
#include <new>
#include <set>
#include <string>
#include <system_error>
#include <utility>

#include "treadle/core/base/check.h"
#include "treadle/core/base/listed.h"
#include "treadle/core/io/serving.h"
#include "treadle/core/summation/pump_connection.h"

namespace treadle::summation {
namespace {

constexpr size_t kWrittenPerTurn = size_t{256} << 10;

// How often the pump looks for what is late.
Duration lookInterval(Duration timeout) {
  constexpr int kLooks = 8;
  return std::clamp<Duration>(timeout / kLooks, std::chrono::milliseconds(1), std::chrono::seconds(1));
}

PumpOptions withBandwidths(PumpOptions options, size_t workers, size_t machines) {
  if (options.bandwidths.workers.empty()) options.bandwidths = Bandwidths::even(workers, machines - workers, 1);
  return options;
}

bool isAligned(Bytes data, group::DataType type) {
  const bool isComplex = type == group::DataType::kComplex64 || type == group::DataType::kComplex128;
  return data.empty() || reinterpret_cast<uintptr_t>(data.data()) % (sizeOf(type) / (isComplex ? 2 : 1)) == 0;
}

Status noMemory() { return resourceExhausted("there is no memory for the parts that this machine sums"); }

}  // namespace

Pump::Outcome::Outcome(const io::ContinueOn& continueOn) : promise_(continueOn), failure_(noMemory()) {}

void Pump::Outcome::end(const Status& how) try {
  if (how.ok()) return promise_.set();
  try {
    failure_ = how;
  } catch (const std::bad_alloc&) {  // then it stays as it is
  }
  promise_.fail(std::move(failure_));
} catch (const std::bad_alloc&) {  // of what runs when the future is ready, as it is by then
}

Pump::Pump(Declaration declaration, Machine self, std::vector<std::string> names, std::vector<PumpPeer> peers,
           PumpOptions options)
    : options_(withBandwidths(std::move(options), declaration.workers, names.size())),
      state_(std::move(declaration), self, std::move(names), options_.patience, options_.traffic),
      overdue_(options_.timeout),
      ended_(options_.continueOn),
      whenEnded_(ended_.future()),
      noMemory_(noMemory()),
      allHaveLeft_(failedPrecondition("all workers have left the summation service")),
      isTaken_(state_.declaration().tensors.size()),
      isWithout_(state_.names.size()) {
  const size_t others = (state_.isWorker(self) ? state_.names.size() - 1 : state_.declaration().workers);
  TREADLE_CHECK(peers.size() == others, "a pump has a peer for each machine that it exchanges bytes with");
  sharedStateOf(whenEnded_)->endsByItself = true;
  for (PumpPeer& peer : peers) {
    TREADLE_CHECK(peer.machine < state_.names.size() && peer.machine != self, "a peer that is no machine");
    connections_.push_back(std::make_shared<PumpConnection>(state_, peer.machine, std::move(peer.stream)));
    throwIfError(state_.reactor->add(connections_.back()->fd(), EPOLLIN, connections_.back()));
  }
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    raise(resourceExhausted(std::string("the summation service has no thread: ") + error.what()));
  }
}

Pump::~Pump() { close(cancelled("the summation service has ended")); }

Status Pump::checkSum(size_t tensor, MutableBytes data) const {
  if (!state_.isWorker(state_.self)) return failedPrecondition("a machine that is no worker has no data to sum");
  const auto& tensors = state_.declaration().tensors;
  if (tensor >= tensors.size())
    return invalidArgument("there is no tensor " + std::to_string(tensor) + "; " + std::to_string(tensors.size()) +
                           " were declared");
  const uint64_t bytes = tensors[tensor].dataBytes();
  if (data.size() == bytes && !isAligned(data, tensors[tensor].type))
    return invalidArgument("the data of " + state_.declaration().textOf(tensor) + " is not aligned for its type");
  if (data.size() == bytes) return {};
  return invalidArgument(state_.declaration().textOf(tensor) + " was declared with " + std::to_string(bytes) +
                         " bytes, and its data has " + std::to_string(data.size()));
}

Future<void> Pump::sum(size_t tensor, MutableBytes data) {
  throwIfError(checkSum(tensor, data));
  Outcome outcome(options_.continueOn);
  Future<void> future = outcome.future();
  sharedStateOf(future)->endsByItself = true;
  {
    MutexLock lock(mutex_);
    if (leaves_) raise(failedPrecondition("this worker has left the summation service and makes no more sums"));
    if (!failure_.ok()) {
      outcome.end(failure_);
      return future;
    }
    if (isTaken_[tensor])
      raise(failedPrecondition("a sum of " + state_.declaration().textOf(tensor) +
                               " is under way; wait for its future first"));
    requests_.push_back({tensor, data, std::move(outcome)});
    isTaken_[tensor] = true;
  }
  state_.reactor->wake();
  return future;
}

void Pump::leave() {
  {
    MutexLock lock(mutex_);
    leaves_ = true;
  }
  state_.reactor->wake();
}

void Pump::fail(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (failure_.ok()) failure_ = why;
  }
  state_.reactor->wake();
}

void Pump::lost(Machine machine, const Status& why) {
  {
    MutexLock lock(mutex_);
    lost_.emplace_back(machine, why);
  }
  state_.reactor->wake();
}

void Pump::lostElsewhere(Machine server, const Status& why) {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok() || isWithout_[server]) return;
    isWithout_[server] = true;
    lostElsewhere_.emplace_back(server, why);
  }
  state_.reactor->wake();
}

void Pump::move(Machine server, std::vector<Machine> machines) {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return;
    isWithout_[server] = true;
    moves_.emplace_back(server, std::move(machines));
  }
  state_.reactor->wake();
}

bool Pump::isWithout(Machine server) const {
  MutexLock lock(mutex_);
  return isWithout_[server];
}

void Pump::close(const Status& why) {
  fail(why);
  if (thread_.joinable()) thread_.join();
}

// The thread that has made this one may have set that small floats are zero: sums have the same bits on all machines.
void Pump::run() {
  std::fesetenv(FE_DFL_ENV);
  const io::Serving reads;
  Status failure;
  while (failure.ok() && !isOver()) {
    try {
      failure = turn();
    } catch (const std::bad_alloc&) {
      failure = std::move(noMemory_);
    }
  }
  end(std::move(failure));
}

// All workers have left, and know that this one has.
bool Pump::isOver() const {
  if (!state_.departures.allHaveLeft()) return false;
  return !state_.isWorker(state_.self) ||
         std::all_of(connections_.begin(), connections_.end(), [](const auto& one) { return one->leaveIsWritten(); });
}

// Until something happens. A failure ends the service.
Status Pump::turn() {
  {
    MutexLock lock(mutex_);
    if (!failure_.ok()) return failure_;
    begun_.swap(requests_);
    mayLeave_ = leaves_;
  }
  beginAll();
  do {
    leaveIfDone();
    write();
  } while (partsDone());
  TREADLE_RETURN_IF_ERROR(checkCounts());
  TREADLE_RETURN_IF_ERROR(lossOrFailure());
  if (isOver()) return {};
  if (std::exchange(state_.isActive, false)) watch();
  state_.reactor->poll();
  return {};
}

Status Pump::lossOrFailure() {
  std::vector<std::pair<Machine, Status>> lost;
  {
    MutexLock lock(mutex_);
    lost.swap(lost_);
  }
  for (auto& [machine, why] : lost) {
    if (connectionTo(machine) != nullptr)  // or those that it is joined to report it
      state_.losses.reported(machine, std::move(why), Clock::now());
  }
  TREADLE_RETURN_IF_ERROR(hearNews());
  if (!state_.failure.ok()) return state_.failure;
  while (const auto loss = state_.losses.certain(Clock::now())) {
    if (state_.isWorker(loss->machine)) return loss->why;
    TREADLE_RETURN_IF_ERROR(lose(loss->machine, loss->why));
  }
  if (const auto due = state_.losses.due(); due && *due != wakesAt_) state_.reactor->at(wakesAt_ = *due, [] {});
  return {};
}

// What other machines say of lost servers.
Status Pump::hearNews() {
  std::vector<std::pair<Machine, Status>> lost;
  std::vector<std::pair<Machine, std::vector<Machine>>> moves;
  {
    MutexLock lock(mutex_);
    lost.swap(lostElsewhere_);
    moves.swap(moves_);
  }
  for (const auto& [server, why] : lost)
    if (connectionTo(server) != nullptr) TREADLE_RETURN_IF_ERROR(lose(server, why));
  for (const auto& [server, machines] : moves) {
    drop(server);
    const Status moved = state_.move(server, machines);
    if (moved.code() == Code::kInvalidArgument)
      return dataLoss(state_.names.front() + " sent what no first worker sends: " + moved.message());
    TREADLE_RETURN_IF_ERROR(moved);
  }
  return {};
}

// This machine has noticed it, or it is the first worker and another one has. The latest running sums are nowhere else.
Status Pump::lose(Machine server, const Status& why) {
  if (state_.declaration().mode.isAsynchronous) return why;
  drop(server);
  if (state_.self > 0) return options_.outbox.sendLoss(server, why);
  const std::vector<Machine> machines = state_.sums.placesWithout(server, options_.bandwidths);
  TREADLE_RETURN_IF_ERROR(state_.move(server, machines));
  return options_.outbox.sendMove(server, machines, why);
}

// Nothing is read from its connection, if there is one, or written to it, any more. Wakes the reactor, so that new
// frames for other machines are written before the pump waits.
void Pump::drop(Machine server) {
  state_.reactor->wake();
  if (const PumpConnection* connection = connectionTo(server)) state_.reactor->remove(connection->fd());
  std::erase_if(connections_, [server](const auto& one) { return one->machine() == server; });
  state_.order.setPending(server, false);
  state_.losses.ignore(server);
  MutexLock lock(mutex_);
  isWithout_[server] = true;
}

void Pump::beginAll() {
  while (!begun_.empty()) begin();
}

// The last of them, which stays there until it is under way.
void Pump::begin() {
  Request& request = begun_.back();
  const size_t tensor = request.tensor;
  const MutableBytes all = request.data;
  const auto [first, end] = state_.declaration().partsOf(tensor);
  underWay_.try_emplace(tensor, std::move(request.outcome), end - first + 1, Clock::now());
  begun_.pop_back();
  if (end > first) ++sums_;
  state_.isActive = true;
  state_.sums.announce(tensor, all);
  partDone(tensor);  // it may have no bytes, and no parts
}

void Pump::leaveIfDone() {
  if (!mayLeave_ || hasLeft_ || !underWay_.empty() || !state_.isWorker(state_.self)) return;
  hasLeft_ = true;
  state_.left(state_.self, {FrameKind::kLeave, 0, 0, sums_, 0}).ignore();  // once
  for (const auto& one : connections_) one->leave(sums_);
}

// Whether there were any.
bool Pump::partsDone() {
  const std::vector<size_t> done = state_.sums.takeDone();
  for (const size_t part : done) partDone(state_.declaration().parts[part].tensor);
  countSums();
  return !done.empty();
}

void Pump::countSums() {
  const uint64_t made = state_.sums.adder().sums();
  if (made > countedSums_) state_.traffic->sums += made - std::exchange(countedSums_, made);
}

void Pump::partDone(size_t tensor) {
  const auto found = underWay_.find(tensor);
  if (--found->second.parts > 0) return;
  state_.sums.finish(tensor);
  Outcome outcome = std::move(found->second.outcome);
  underWay_.erase(found);
  {
    MutexLock lock(mutex_);
    isTaken_[tensor] = false;
  }
  outcome.end({});
}

PumpConnection* Pump::connectionTo(Machine machine) const {
  const auto isIt = [&](const auto& one) { return one->machine() == machine; };
  const auto found = std::find_if(connections_.begin(), connections_.end(), isIt);
  return found == connections_.end() ? nullptr : found->get();
}

// So much that others get their turn; then `poll` does not wait.
void Pump::write() {
  const auto next = [&] {
    for (const auto& one : connections_) state_.order.setPending(one->machine(), one->hasBytes());
    return state_.order.next();
  };
  for (size_t written = 0; const std::optional<size_t> machine = next();) {
    written += connectionTo(*machine)->write();
    if (written > kWrittenPerTurn) return state_.reactor->wake();
  }
}

// A worker that has begun more sums than another one had when that left waits in vain; of running sums one that waits
// for the first values.
Status Pump::checkCounts() const {
  if (const std::optional<size_t> part = state_.sums.adder().waitsInVain()) {
    const std::string& first = state_.names.front();
    return failedPrecondition(first + " has left the summation service, and has not given " +
                              state_.declaration().textOf(state_.declaration().parts[*part].tensor) +
                              ", with whose values all begin")
        .withWorker(first);
  }
  if (underWay_.empty() || state_.declaration().mode.isAsynchronous) return {};
  const std::optional<Machine> worker = state_.departures.leftBefore(sums_);
  if (!worker) return {};
  const std::string& name = state_.names[*worker];
  return failedPrecondition(name + " has left the summation service, and " + state_.names[state_.self] +
                            " waits for its data in the sum of " +
                            state_.declaration().textOf(underWay_.begin()->first) + " (sums begun: " +
                            std::to_string(state_.departures.sumsOf(*worker)) + " and " + std::to_string(sums_) + ")")
      .withWorker(name);
}

void Pump::watch() {
  if (watches_ || options_.timeout == kNoTimeout) return;
  watches_ = true;
  state_.reactor->at(deadlineAfter(lookInterval(options_.timeout)), [this] { look(); });
}

void Pump::look() {
  watches_ = false;
  Status late = overdueHere();
  if (late.ok()) late = overdueElsewhere();
  if (!late.ok() && state_.failure.ok()) state_.failure = std::move(late);
  if (!late.ok()) return;
  if (!underWay_.empty() || !state_.sums.adder().awaited().empty()) watch();
}

std::string Pump::namesOf(const std::vector<Machine>& machines) const {
  constexpr size_t kMost = 8;
  return listed(machines, kMost, [this](Machine machine) { return state_.names[machine]; });
}

// A part that this machine sums, and that some workers have not begun.
Status Pump::overdueHere() {
  const auto late = overdue_.look(state_.sums.adder().awaited(), Clock::now());
  if (!late) return {};
  const std::vector<size_t> missing = state_.sums.adder().missing(late->first);
  return deadlineExceeded("the sum of " + state_.declaration().textOf(state_.declaration().parts[late->first].tensor) +
                          " was not begun in " + toText(options_.timeout) + " by " + namesOf(missing))
      .withWorker(state_.names[missing.front()]);
}

// A sum that does not end, while nothing comes or goes.
Status Pump::overdueElsewhere() {
  const TimePoint now = Clock::now();
  if (std::exchange(framesAtLook_, state_.frames) != state_.frames) lastFrame_ = now;
  for (const auto& [tensor, sum] : underWay_) {
    if (now - std::max(sum.begun, lastFrame_) - 3 * lookInterval(options_.timeout) < options_.timeout) continue;
    const auto [first, end] = state_.declaration().partsOf(tensor);
    std::set<Machine> machines;
    for (size_t part = first; part < end; ++part) {
      if (!state_.sums.isHere(part)) machines.insert(state_.declaration().parts[part].machine);
    }
    const std::string what =
        "the sum of " + state_.declaration().textOf(tensor) + " was not done in " + toText(options_.timeout);
    if (machines.empty()) return deadlineExceeded(what + ": it is here, and some other worker has not reported it");
    Status late = deadlineExceeded(what + ": it lacks the parts that are summed by " +
                                   namesOf({machines.begin(), machines.end()}));
    return machines.size() > 1 ? late : std::move(late).withWorker(state_.names[*machines.begin()]);
  }
  return {};
}

// Nothing is read or written any more. There may be no memory.
void Pump::end(Status failure) {
  for (const auto& one : connections_) state_.reactor->remove(one->fd());
  connections_.clear();
  const bool hasEnded = failure.ok();
  const Status* why = nullptr;
  std::vector<Request> requests;
  {
    MutexLock lock(mutex_);
    if (hasEnded) failure_ = std::move(allHaveLeft_);
    if (failure_.ok()) failure_ = std::move(failure);
    why = &failure_;
    requests.swap(requests_);
  }
  for (auto& [tensor, underWay] : underWay_) underWay.outcome.end(*why);
  underWay_.clear();
  for (std::vector<Request>* some : {&begun_, &requests}) {
    for (Request& request : *some) request.outcome.end(*why);
    some->clear();
  }
  hasEnded ? ended_.end({}) : ended_.end(*why);
}

}  // namespace treadle::summation

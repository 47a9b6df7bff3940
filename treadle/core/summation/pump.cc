#include "treadle/core/summation/pump.h"

#include <algorithm>
#include <cfenv>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "treadle/core/base/check.h"
#include "treadle/core/io/serving.h"
#include "treadle/core/summation/pump_connection.h"
#include "treadle/core/summation/record.h"

namespace treadle::summation {
namespace {

constexpr size_t kWrittenPerTurn = size_t{256} << 10;

PumpOptions withBandwidths(PumpOptions options, size_t workers, size_t machines) {
  if (options.bandwidths.workers.empty()) options.bandwidths = Bandwidths::even(workers, machines - workers, 1);
  return options;
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
      isWithout_(state_.names.size()),
      times_(options_.times) {
  times_.isAsynchronous = state_.declaration().mode.isAsynchronous;
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
  return state_.declaration().checkData(tensor, data);
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
    publishTimes();
  }
  become(isBusy() || !begun_.empty() ? Activity::Kind::kComputing : Activity::Kind::kIdle);
  beginAll();
  do {
    leaveIfDone();
    write();
  } while (partsDone());
  TREADLE_RETURN_IF_ERROR(checkCounts());
  TREADLE_RETURN_IF_ERROR(lossOrFailure());
  if (isOver()) return {};
  if (std::exchange(state_.isActive, false)) watch();
  const Activity::Kind waits = state_.sums.dataMayMove() ? Activity::Kind::kMoving : Activity::Kind::kWaiting;
  become(isBusy() ? waits : Activity::Kind::kIdle);
  state_.reactor->poll();
  return {};
}

// A sum of this worker is under way, or a part of this server.
bool Pump::isBusy() const { return state_.isWorker(state_.self) ? !underWay_.empty() : state_.sums.dataMayMove(); }

void Pump::publishTimes() {
  times_.sums = sumsDone_;
  times_.bytes = bytesDone_;
  times_.bytesSent = state_.bytesSent;
  times_.bytesReceived = state_.bytesReceived;
  times_.waiting = state_.activity.spent(Activity::Kind::kWaiting);
  times_.moving = state_.activity.spent(Activity::Kind::kMoving);
  times_.computing = state_.activity.spent(Activity::Kind::kComputing);
}

SummationTimes Pump::times() const {
  MutexLock lock(mutex_);
  return times_;
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

// This machine has noticed it, or it is the first worker and another one has.
Status Pump::lose(Machine server, const Status& why) {
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
  ++sumsDone_;
  bytesDone_ += state_.declaration().tensors[tensor].bytes;
  Outcome outcome = std::move(found->second.outcome);
  underWay_.erase(found);
  become(Activity::Kind::kComputing);
  {
    MutexLock lock(mutex_);
    isTaken_[tensor] = false;
    publishTimes();
  }
  outcome.end({});
}

void Pump::recordTimes() const try {
  if (!options_.recordFolder.empty()) record(times(), options_.recordFolder);
} catch (const std::bad_alloc&) {  // then there is no record
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

// Nothing is read or written any more. There may be no memory.
void Pump::end(Status failure) {
  for (const auto& one : connections_) state_.reactor->remove(one->fd());
  connections_.clear();
  become(Activity::Kind::kIdle);
  const bool hasEnded = failure.ok();
  const Status* why = nullptr;
  std::vector<Request> requests;
  {
    MutexLock lock(mutex_);
    if (hasEnded) failure_ = std::move(allHaveLeft_);
    if (failure_.ok()) failure_ = std::move(failure);
    why = &failure_;
    publishTimes();
    requests.swap(requests_);
  }
  for (auto& [tensor, underWay] : underWay_) underWay.outcome.end(*why);
  underWay_.clear();
  for (std::vector<Request>* some : {&begun_, &requests}) {
    for (Request& request : *some) request.outcome.end(*why);
    some->clear();
  }
  recordTimes();
  hasEnded ? ended_.end({}) : ended_.end(*why);
}

}  // namespace treadle::summation

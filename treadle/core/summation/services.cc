#include "treadle/core/summation/services.h"

#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/core/summation/service_messages.h"

namespace treadle::summation {
namespace {

// A report takes longer than this on a job's connections only where they are very busy: then a loss has another reason.
constexpr Duration kPatience = std::chrono::seconds(2);

}  // namespace

Services::Services(cluster::Membership& membership, io::ContinueOn continueOn, Dial dial)
    : continueOn_(std::move(continueOn)),
      dial_(std::move(dial)),
      outbox_(std::make_shared<Outbox>(membership)),
      keeper_(std::make_shared<Keeper>(continueOn_)) {}

Services::~Services() { close(cancelled("this worker has left the job")); }

std::shared_ptr<Participant> Services::begin(uint64_t number, std::vector<WorkerInfo> machines, size_t workers,
                                             Machine self, Duration timeout) {
  auto report = [outbox = outbox_, number, machines](const Status& why) { outbox->report(number, machines, why); };
  const PumpOptions options{.timeout = timeout, .patience = kPatience, .continueOn = continueOn_};
  auto participant = std::make_shared<Participant>(std::move(machines), workers, self, options, std::move(report));
  MutexLock lock(mutex_);
  throwIfError(closed_);
  std::erase_if(participants_, [](const auto& one) { return one.second.expired(); });
  participants_[number] = participant;
  return participant;
}

void Services::Keeper::keep(std::shared_ptr<Participant> participant) {
  {
    MutexLock lock(mutex_);
    kept_.push_back(std::move(participant));
  }
  // The task has no participant of its own: an executor that has stopped drops it on this thread.
  runOn_.post([keeper = shared_from_this()] { keeper->letGo(); });
}

void Services::Keeper::letGo() {
  std::vector<std::shared_ptr<Participant>> kept;
  {
    MutexLock lock(mutex_);
    kept.swap(kept_);
  }
  for (const auto& participant : kept) participant->close(cancelled("it was dropped"));
}

// Who is lost hears nothing, and need not.
void Services::Outbox::report(uint64_t number, const std::vector<WorkerInfo>& machines, const Status& why) {
  const base::Gate::Use inside(gate);
  if (!inside) return;
  const std::vector<std::byte> message = encode(FailureMessage{number, why});
  for (const WorkerInfo& machine : machines)
    if (machine.rank != membership.self().rank)
      membership.send(machine.rank, link::Subject::kSummation, message, {}, link::SendMode::kUrgent, kNever).ignore();
}

std::shared_ptr<Participant> Services::find(uint64_t number) const {
  MutexLock lock(mutex_);
  const auto found = participants_.find(number);
  return found == participants_.end() ? nullptr : found->second.lock();
}

std::vector<std::shared_ptr<Participant>> Services::all() const {
  std::vector<std::shared_ptr<Participant>> living;
  MutexLock lock(mutex_);
  for (const auto& [number, weak] : participants_)
    if (auto participant = weak.lock()) living.push_back(std::move(participant));
  return living;
}

Status Services::check(int rank, uint64_t number) const {
  const auto participant = find(number);
  return participant ? participant->check(rank)
                     : failedPrecondition("this worker has no part in that summation service");
}

Status Services::attach(int rank, uint64_t number, io::Stream stream) {
  const auto participant = find(number);
  return participant ? participant->take(rank, std::move(stream)) : cancelled("the summation service has ended");
}

// Of a service that is over here it is no news.
void Services::onMessage(int rank, const std::shared_ptr<link::Connection>& from, link::Message message) {
  if (!message.buffers.empty()) return from->close(dataLoss("it sent buffers with a failure of a summation service"));
  Result<FailureMessage> failure = parseFailure(message.payload);
  if (!failure.ok()) return from->close(failure.status());
  outbox_->membership.noteReported(rank, failure->why);
  if (const auto participant = find(failure->number)) participant->failedOn(rank, failure->why);
}

void Services::onLost(int rank, const Status& why) {
  for (const auto& participant : all()) participant->lost(rank, why);
}

void Services::close(const Status& why) {
  {
    MutexLock lock(mutex_);
    if (closed_.ok()) closed_ = why;
  }
  for (const auto& participant : all()) participant->close(why);
  keeper_->letGo();
  outbox_->gate.close();
}

}  // namespace treadle::summation

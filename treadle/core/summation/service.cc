#include "treadle/core/summation/service.h"

#include <algorithm>
#include <map>
#include <new>
#include <set>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/core/group/group.h"
#include "treadle/core/group/group_core.h"
#include "treadle/core/group/group_service.h"
#include "treadle/core/io/serving.h"
#include "treadle/core/summation/service_messages.h"
#include "treadle/core/summation/services.h"
#include "treadle/core/summation/shares.h"

namespace treadle::summation {

using group::ProcessGroup;

namespace {

constexpr std::string_view kNotCompressed = "an asynchronous summation service compresses nothing";

std::string inWords(const Packing& packing) {
  switch (packing.form) {
    case Compression::Form::kNone: break;
    case Compression::Form::kFloat16: return " as float16";
    case Compression::Form::kBFloat16: return " as bfloat16";
    case Compression::Form::kOneBit: return " as one bit";
    case Compression::Form::kTopK: return " as 16 of " + std::to_string(packing.chunkElements);
  }
  return {};
}

std::string inWords(const Declaration::Tensor& tensor) {
  return "'" + tensor.name + "', " + std::to_string(tensor.dataBytes() / sizeOf(tensor.type)) + " " +
         std::string(nameOf(tensor.type)) + inWords(tensor.packing);
}

Result<Packing> packingOf(const SummationTensor& tensor, const Compression& compression) {
  const bool canBe = tensor.type == group::DataType::kFloat32;
  if (!tensor.compression) return canBe ? Packing::of(compression, tensor.elements) : Packing();
  TREADLE_RETURN_IF_ERROR(tensor.compression->validate().withContext("'" + tensor.name + "'"));
  if (!canBe && tensor.compression->form != Compression::Form::kNone)
    return invalidArgument("'" + tensor.name + "' is of " + std::string(nameOf(tensor.type)) +
                           "; only float32 can be compressed");
  return Packing::of(*tensor.compression, tensor.elements);
}

Result<std::vector<Declaration::Tensor>> declaredTensors(const std::vector<SummationTensor>& tensors,
                                                         const Compression& compression) {
  std::vector<Declaration::Tensor> declared;
  std::set<std::string_view> names;
  for (const SummationTensor& tensor : tensors) {
    if (tensor.name.empty() || tensor.name.size() > kMostNameBytes)
      return invalidArgument("a tensor of a summation service has a name of 1 to " + std::to_string(kMostNameBytes) +
                             " bytes");
    if (!names.insert(tensor.name).second)
      return invalidArgument("two tensors of a summation service are called '" + tensor.name + "'");
    if (tensor.elements > UINT64_MAX / sizeOf(tensor.type))
      return invalidArgument("'" + tensor.name + "' is too large");
    const Result<Packing> packing = packingOf(tensor, compression);
    if (!packing.ok()) return packing.status();
    const uint64_t bytes = packing->isPacked() ? packing->bytes() : tensor.elements * sizeOf(tensor.type);
    declared.push_back({tensor.type, bytes, tensor.name, *packing});
  }
  return declared;
}

Bandwidths bandwidthsOf(const SummationOptions& options) {
  if (options.bandwidths.empty()) return Bandwidths::even(options.workers.size(), options.servers.size(), 1);
  const auto servers = options.bandwidths.begin() + static_cast<std::ptrdiff_t>(options.workers.size());
  return {{options.bandwidths.begin(), servers}, {servers, options.bandwidths.end()}};
}

Status checkName(const std::string& name) {
  if (name.size() <= kMostServiceNameBytes) return {};
  return invalidArgument("the name of a summation service has " + std::to_string(name.size()) + " bytes; at most " +
                         std::to_string(kMostServiceNameBytes) + " are possible");
}

// Where workers go at their own pace, none waits for one that is slow and sums.
Shares sharesOf(const SummationOptions& options) {
  const Bandwidths bandwidths = bandwidthsOf(options);
  return options.asynchronous && !options.servers.empty() ? serverShares(bandwidths) : bestShares(bandwidths);
}

SumMode modeOf(const SummationOptions& options) {
  return {options.asynchronous, options.staleness.value_or(SumMode::kAnyStaleness)};
}

std::string inWords(const SumMode& mode) {
  if (!mode.isAsynchronous) return "a synchronous service";
  if (mode.staleness == SumMode::kAnyStaleness) return "an asynchronous service of any staleness";
  return "an asynchronous service of staleness " + std::to_string(mode.staleness);
}

// The group of all machines. Servers of the job are invited whatever becomes of the service, so that they count the
// services as the workers do. A timeout that is none is replaced, so that the group can report it.
ProcessGroup gathered(Job& job, const SummationOptions& options) {
  throwIfError(checkName(options.name));
  std::vector<std::string> names = options.workers;
  names.insert(names.end(), options.servers.begin(), options.servers.end());
  // With the number of workers: machines that take others for workers must not meet.
  const std::string name = "summation service '" + options.name + "' of " + std::to_string(options.workers.size()) +
                           (options.workers.size() == 1 ? " worker" : " workers");
  const Duration timeout = group::checkTimeout(options.timeout).ok() ? options.timeout : SummationOptions().timeout;
  ProcessGroup group = ProcessGroup::makeWithServers(job, names, {.name = name, .timeout = timeout});
  if (group.rank() == 0) job.services().invite({options.workers, options.servers, options.name, timeout});
  return group;
}

// The first difference between what two workers declare.
Status compare(const std::vector<Declaration::Tensor>& own, SumMode ownMode, const std::string& ownName,
               const Declaration& declared, const std::string& otherName) {
  if (ownMode != declared.mode)
    return invalidArgument(ownName + " makes " + inWords(ownMode) + ", and " + otherName + " " +
                           inWords(declared.mode));
  const std::vector<Declaration::Tensor>& others = declared.tensors;
  if (own.size() != others.size())
    return invalidArgument(ownName + " declares " + std::to_string(own.size()) + " tensors, and " + otherName + " " +
                           std::to_string(others.size()));
  for (size_t i = 0; i < own.size(); ++i)
    if (own[i] != others[i])
      return invalidArgument("tensor " + std::to_string(i) + " is declared by " + ownName + " as " + inWords(own[i]) +
                             ", and by " + otherName + " as " + inWords(others[i]));
  return {};
}

// How the machines of a service come together: by operations of their group, all of them before the deadline.
class Meeting {
 public:
  Meeting(ProcessGroup group, TimePoint deadline) : group_(std::move(group)), deadline_(deadline) {}

  // All machines take connections from now on, and know the tensors of the first worker, which are those of all.
  Declaration agree(const SummationOptions& options, const std::vector<SummationTensor>& tensorsHere) const {
    const size_t workers = options.workers.size();
    const auto self = static_cast<size_t>(group_.rank());
    if (self >= workers && !tensorsHere.empty())
      raise(invalidArgument(options.servers[self - workers] + " is a server of the summation service and has tensors"));
    const std::vector<Declaration::Tensor> tensors = valueOrThrow(declaredTensors(tensorsHere, options.compression));
    const bool isCompressed = std::ranges::any_of(tensors, [](const auto& one) { return one.packing.isPacked(); });
    if (options.asynchronous && isCompressed) raise(invalidArgument(std::string(kNotCompressed)));
    std::vector<std::byte> first;
    if (self == 0) {
      Declaration own = valueOrThrow(Declaration::of(tensors, sharesOf(options)));
      own.mode = modeOf(options);
      first = encode(own);
    }
    barrier(inTime()).wait();
    Declaration declaration =
        valueOrThrow(parseDeclaration(ofFirst(std::move(first)), workers, static_cast<size_t>(group_.size())));
    if (self < workers)
      throwIfError(compare(tensors, modeOf(options), options.workers[self], declaration, options.workers.front()));
    barrier(inTime()).wait();  // or the difference on another machine
    return declaration;
  }

  void connect(const Services& services, Participant& participant) const {
    const auto dial = [&](int rank) { return services.dial(rank, group_.core().link().group(), deadline_); };
    participant.dialOthers(dial, deadline_);
    participant.awaitDialers(deadline_);
    barrier(inTime()).wait();  // all are connected
  }

 private:
  ProcessGroup inTime() const {
    if (deadline_ == kNever) return group_;
    return group_.withTimeout(std::max<Duration>(deadline_ - Clock::now(), std::chrono::milliseconds(1)));
  }
  std::vector<std::byte> ofFirst(std::vector<std::byte> bytes) const {
    uint64_t size = bytes.size();
    broadcast(inTime(), std::span(&size, 1), 0).wait();
    if (size > kMostDeclarationBytes)
      raise(resourceExhausted("the tensors of a summation service are too many to declare"));
    bytes.resize(size);
    broadcast(inTime(), MutableBytes(bytes), 0).wait();
    return bytes;
  }

  const ProcessGroup group_;
  const TimePoint deadline_;
};

// Of the exception that is being handled.
Status whyNotMade() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return resourceExhausted("there is no memory to make a summation service");
  } catch (...) {
    return statusOfCurrentException("making a summation service");
  }
}

// Servers that wait for their invitation are not to blame.
Status withAdvice(const Status& why, const Services& services, const SummationOptions& options) {
  const std::vector<std::string> invited = services.servers();
  const bool waitForInvitation = std::any_of(options.servers.begin(), options.servers.end(), [&](const auto& server) {
    return std::find(invited.begin(), invited.end(), server) != invited.end();
  });
  const bool invites = options.workers.front() == services.self().name;
  if (why.code() != Code::kDeadlineExceeded || !waitForInvitation || invites || services.isServer()) return why;
  return Status(why.code(),
                why.message() + "; servers of the job take part when " + options.workers.front() + " makes the service")
      .withWorker(why.worker());
}

std::shared_ptr<Participant> begun(Services& services, const ProcessGroup& group, const SummationOptions& options) {
  const group::MemberLink& link = group.core().link();
  std::vector<WorkerInfo> machines;
  for (int member = 0; member < link.size(); ++member) machines.push_back(link.member(member));
  return services.begin(link.group(), std::move(machines), options.workers.size(), static_cast<Machine>(group.rank()),
                        options.timeout, bandwidthsOf(options), options.name);
}

}  // namespace

Status SummationOptions::validate() const {
  TREADLE_RETURN_IF_ERROR(group::checkTimeout(timeout));
  TREADLE_RETURN_IF_ERROR(checkName(name));
  TREADLE_RETURN_IF_ERROR(compression.validate());
  if (asynchronous && compression.form != Compression::Form::kNone) return invalidArgument(std::string(kNotCompressed));
  if (staleness && !asynchronous)
    return invalidArgument("only an asynchronous summation service has a staleness (SummationOptions::asynchronous)");
  if (!workers.empty() && !bandwidths.empty() && bandwidths.size() != workers.size() + servers.size())
    return invalidArgument("a summation service of " + std::to_string(workers.size()) + " workers and " +
                           std::to_string(servers.size()) + " servers has " + std::to_string(bandwidths.size()) +
                           " bandwidths");
  constexpr double kMost = 1e100;  // so that sums of them and of what they take are finite
  for (const double bandwidth : bandwidths)
    if (!(bandwidth >= 1 / kMost && bandwidth <= kMost))
      return invalidArgument("a bandwidth of a summation service is not from 1e-100 to 1e100");
  return {};
}

struct SummationService::Handle {
  Handle(std::shared_ptr<Participant> of, std::shared_ptr<Services::Keeper> keptBy)
      : participant(std::move(of)), keeper(std::move(keptBy)) {}
  // A thread that polls or reads, as that of the pump, leaves the waiting to another one.
  ~Handle() {
    const Status why = cancelled("it has dropped its part in the summation service");
    if (!io::Serving::here()) {
      participant->close(why);
    } else {
      participant->fail(why);
      keeper->keep(std::move(participant));
    }
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  std::shared_ptr<Participant> participant;
  const std::shared_ptr<Services::Keeper> keeper;
  std::vector<group::DataType> types;
  std::map<std::string, size_t, std::less<>> places;  // of tensors, by name
};

SummationService SummationService::make(Job& job, SummationOptions options, std::vector<SummationTensor> tensors) {
  Services& services = job.services();
  if (services.isServer())
    raise(failedPrecondition(services.self().name +
                             " has the rank of a summation server (TREADLE_SERVERS), which takes part in services by "
                             "itself: start `treadle server` with this rank"));
  if (options.workers.empty() && options.servers.empty()) options.servers = services.servers();
  if (options.workers.empty()) options.workers = services.workers();
  return takePart(job, options, tensors);
}

SummationService SummationService::takePart(Job& job, const SummationOptions& options,
                                            const std::vector<SummationTensor>& tensors) {
  const ProcessGroup group = gathered(job, options);
  std::shared_ptr<Handle> handle;
  try {
    throwIfError(options.validate());
    handle = std::make_shared<Handle>(begun(job.services(), group, options), job.services().keeper());
    const Meeting meeting(group, deadlineAfter(options.timeout));
    Declaration declaration = meeting.agree(options, tensors);
    for (size_t i = 0; i < declaration.tensors.size(); ++i) {
      handle->types.push_back(declaration.tensors[i].type);
      handle->places.emplace(declaration.tensors[i].name, i);
    }
    meeting.connect(job.services(), *handle->participant);
    handle->participant->start(std::move(declaration));
  } catch (...) {
    Status why = withAdvice(whyNotMade(), job.services(), options);
    if (handle) why = handle->participant->giveUp(why);
    group.core().abandon(why);
    raise(std::move(why));
  }
  return SummationService(handle);
}

SummationService::Handle& SummationService::handle() const {
  if (!handle_) raise(failedPrecondition("this SummationService is none"));
  return *handle_;
}

bool SummationService::isServer() const {
  const Participant& participant = *handle().participant;
  return !participant.isWorker(participant.self());
}

bool SummationService::isFirst() const { return handle().participant->self() == 0; }

Future<void> SummationService::sum(std::string_view tensor, MutableBytes data, group::DataType type) {
  const Handle& here = handle();
  const auto found = here.places.find(tensor);
  if (found == here.places.end()) raise(notFound("the summation service has no tensor '" + std::string(tensor) + "'"));
  const group::DataType declared = here.types[found->second];
  if (type != declared)
    raise(invalidArgument("'" + std::string(tensor) + "' was declared as " + std::string(nameOf(declared)) + ", not " +
                          std::string(nameOf(type))));
  return here.participant->pump().sum(found->second, data);
}

Future<void> SummationService::leave() {
  Pump& pump = handle().participant->pump();
  pump.leave();
  return pump.ended();
}

void SummationService::fail(const Status& why) {
  if (!ended().ready()) handle().participant->giveUp(why).ignore();
}

Future<void> SummationService::ended() const { return handle().participant->pump().ended(); }

SummationTimes SummationService::times() const { return handle().participant->pump().times(); }

}  // namespace treadle::summation

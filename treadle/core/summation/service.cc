#include "treadle/core/summation/service.h"

#include <algorithm>
#include <functional>
#include <map>
#include <new>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/core/group/group.h"
#include "treadle/core/group/group_core.h"
#include "treadle/core/group/group_service.h"
#include "treadle/core/io/serving.h"
#include "treadle/core/summation/meeting.h"
#include "treadle/core/summation/service_messages.h"
#include "treadle/core/summation/services.h"
#include "treadle/core/summation/team_sums.h"
#include "treadle/core/summation/teams.h"

namespace treadle::summation {

using group::ProcessGroup;

namespace {

Status checkName(const std::string& name) {
  if (name.size() <= kMostServiceNameBytes) return {};
  return invalidArgument("the name of a summation service has " + std::to_string(name.size()) + " bytes; at most " +
                         std::to_string(kMostServiceNameBytes) + " are possible");
}

// A timeout that is none is replaced, so that the group can report it.
Duration timeoutOf(const SummationOptions& options) {
  return group::checkTimeout(options.timeout).ok() ? options.timeout : SummationOptions().timeout;
}

std::vector<std::string> machinesOf(const SummationOptions& options) {
  std::vector<std::string> names = options.workers;
  names.insert(names.end(), options.servers.begin(), options.servers.end());
  return names;
}

// With the number of workers: machines that take others for workers must not meet.
std::string groupName(const SummationOptions& options) {
  return "summation service '" + options.name + "' of " + std::to_string(options.workers.size()) +
         (options.workers.size() == 1 ? " worker" : " workers");
}

// The group of all machines. Servers of the job are invited whatever becomes of the service, so that they count the
// services as the workers do.
ProcessGroup gathered(Job& job, const SummationOptions& options) {
  throwIfError(checkName(options.name));
  const Duration timeout = timeoutOf(options);
  ProcessGroup group =
      ProcessGroup::makeWithServers(job, machinesOf(options), {.name = groupName(options), .timeout = timeout});
  if (group.rank() == 0) job.services().invite({options.workers, options.servers, options.name, timeout});
  return group;
}

// The group of the workers; none on a server.
ProcessGroup workersOf(Job& job, const SummationOptions& options, const ProcessGroup& all) {
  if (options.servers.empty()) return all;
  if (static_cast<size_t>(all.rank()) >= options.workers.size()) return {};
  return ProcessGroup::make(job, options.workers,
                            {.name = "workers of " + groupName(options), .timeout = timeoutOf(options)});
}

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
  const bool waitForInvitation = services.anyIsServer(options.servers);
  const bool invites = options.workers.front() == services.self().name;
  if (why.code() != Code::kDeadlineExceeded || !waitForInvitation || invites || services.isServer()) return why;
  return Status(why.code(),
                why.message() + "; servers of the job take part when " + options.workers.front() + " makes the service")
      .withWorker(why.worker());
}

// Each worker is alone if the options have a mistake, which `validate` reports.
Teams teamsIn(Job& job, const SummationOptions& options) {
  const Teams alone = valueOrThrow(teamsOf(options.workers, Teams()));
  if (options.asynchronous) return alone;
  if (!options.teams.empty()) {
    const Result<Teams> named = teamsOf(options.workers, options.teams);
    return named.ok() ? *named : alone;
  }
  if (!options.teamsByHost) return alone;
  return teamsByHost(options.workers, valueOrThrow(job.groups().placementOf(options.workers)));
}

// Of the service of the teams' first workers. Its timeout is longer, so that the team reports a late sum: it knows
// which of its workers is late.
SummationOptions amongFirsts(SummationOptions options, const Teams& teams) {
  constexpr Duration kTeamsReportFirst = std::chrono::seconds(5);  // pushPull's answers take up to four
  if (teams.size() == options.workers.size()) return options;      // without teams
  const std::vector<std::string> all = std::exchange(options.workers, {});
  const std::vector<double> bandwidths = std::exchange(options.bandwidths, {});
  for (const std::vector<std::string>& team : teams) options.workers.push_back(team.front());
  if (bandwidths.size() == all.size() + options.servers.size()) {
    for (size_t worker = 0; worker < all.size(); ++worker)
      if (std::ranges::count(options.workers, all[worker]) > 0) options.bandwidths.push_back(bandwidths[worker]);
    options.bandwidths.insert(options.bandwidths.end(), bandwidths.begin() + static_cast<std::ptrdiff_t>(all.size()),
                              bandwidths.end());
  }
  options.teams.clear();
  if (options.timeout < kNoTimeout - kTeamsReportFirst) options.timeout += kTeamsReportFirst;
  return options;
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
  if (asynchronous && compression.form != Compression::Form::kNone) return asynchronousAndCompressed();
  if (staleness && !asynchronous)
    return invalidArgument("only an asynchronous summation service has a staleness (SummationOptions::asynchronous)");
  if (!workers.empty() && !bandwidths.empty() && bandwidths.size() != workers.size() + servers.size())
    return invalidArgument("a summation service of " + std::to_string(workers.size()) + " workers and " +
                           std::to_string(servers.size()) + " servers has " + std::to_string(bandwidths.size()) +
                           " bandwidths");
  if (asynchronous && !teams.empty())
    return invalidArgument("an asynchronous summation service has no teams (SummationOptions::teams)");
  if (!workers.empty()) TREADLE_RETURN_IF_ERROR(teamsOf(workers, teams).status());
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
    const bool mayWait = !io::Serving::here();
    if (team) mayWait ? team->close(why) : team->fail(why);
    if (!participant) return;
    if (mayWait) {
      participant->close(why);
    } else {
      participant->fail(why);
      keeper->keep(std::move(participant));
    }
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  // `check` runs when the other machines hear what it throws.
  static std::shared_ptr<Handle> make(Job& job, const SummationOptions& options,
                                      const std::vector<SummationTensor>& tensors, const std::function<void()>& check);
  // `team`: of this worker. The first worker of a team takes part for all of them, and the others hear of its failure
  // as it does of theirs.
  static std::shared_ptr<Handle> makeInTeam(Job& job, const SummationOptions& options, const Teams& teams,
                                            const std::vector<std::string>& team,
                                            const std::vector<SummationTensor>& tensors);

  void declare(const Declaration& declaration) {
    for (const Declaration::Tensor& tensor : declaration.tensors) {
      places.emplace(tensor.name, types.size());
      types.push_back(tensor.type);
    }
  }

  std::shared_ptr<Participant> participant;  // null on workers whose team's first worker has one
  std::shared_ptr<TeamSums> team;            // null on machines that are in no team
  const std::shared_ptr<Services::Keeper> keeper;
  std::vector<group::DataType> types;
  std::map<std::string, size_t, std::less<>> places;  // of tensors, by name
};

std::shared_ptr<SummationService::Handle> SummationService::Handle::make(Job& job, const SummationOptions& options,
                                                                         const std::vector<SummationTensor>& tensors,
                                                                         const std::function<void()>& check) {
  const ProcessGroup group = gathered(job, options);
  ProcessGroup workers;
  std::shared_ptr<Handle> handle;
  try {
    workers = workersOf(job, options, group);
    check();
    handle = std::make_shared<Handle>(begun(job.services(), group, options), job.services().keeper());
    const Meeting meeting(group, deadlineAfter(options.timeout));
    Declaration declaration = meeting.agree(options, tensors);
    // Not sooner: whoever tries again and again is to wait for the servers each time, which it has invited by then.
    if (group.rank() == 0) throwIfError(job.services().checkRoom(options.servers));
    handle->declare(declaration);
    meeting.connect(job.services(), *handle->participant, workers);
    handle->participant->start(std::move(declaration));
  } catch (...) {
    Status why = whyNotMade();
    if (handle) why = handle->participant->giveUp(withAdvice(why, job.services(), options));
    for (const ProcessGroup& one : {group, workers})
      if (one.valid()) one.core().abandon(why);
    raise(std::move(why));
  }
  return handle;
}

std::shared_ptr<SummationService::Handle> SummationService::Handle::makeInTeam(
    Job& job, const SummationOptions& options, const Teams& teams, const std::vector<std::string>& team,
    const std::vector<SummationTensor>& tensors) {
  throwIfError(checkName(options.name));
  const TeamGroups groups = TeamGroups::make(job, team, options, timeoutOf(options));
  std::shared_ptr<Handle> handle;
  try {
    Declaration declaration;
    const auto agree = [&] {
      throwIfError(options.validate());
      SummationOptions ofTeam = options;
      ofTeam.workers = team;
      ofTeam.servers.clear();
      ofTeam.bandwidths.clear();
      declaration = Meeting(groups.sums, deadlineAfter(options.timeout)).agree(ofTeam, tensors);
    };
    if (groups.isFirst()) {
      handle = make(job, amongFirsts(options, teams), tensors, agree);
    } else {
      agree();
      handle = std::make_shared<Handle>(nullptr, job.services().keeper());
      handle->declare(declaration);
    }
    barrier(groups.results).wait();  // the first worker is connected, or has failed
    handle->team = TeamSums::make(groups, std::move(declaration), handle->participant, job.services());
  } catch (...) {
    Status why = whyNotMade();
    if (handle && handle->participant) why = handle->participant->giveUp(why);
    groups.abandon(why);
    raise(std::move(why));
  }
  return handle;
}

SummationService SummationService::make(Job& job, SummationOptions options, std::vector<SummationTensor> tensors) {
  Services& services = job.services();
  if (services.isServer())
    raise(failedPrecondition(services.self().name +
                             " has the rank of a summation server (TREADLE_SERVERS), which takes part in services by "
                             "itself: start `treadle server` with this rank"));
  if (options.workers.empty() && options.servers.empty()) options.servers = services.servers();
  if (options.workers.empty()) options.workers = services.workers();
  // What is wrong with the names is refused by all alike.
  throwIfError(job.groups().placementOf(machinesOf(options)).status());
  throwIfError(job.groups().checkNoServers(options.workers));
  const Teams teams = teamsIn(job, options);
  for (const std::vector<std::string>& team : teams)
    if (team.size() > 1 && std::ranges::count(team, services.self().name) > 0)
      return SummationService(Handle::makeInTeam(job, options, teams, team, tensors));
  const auto check = [&] { throwIfError(options.validate()); };
  return SummationService(Handle::make(job, amongFirsts(options, teams), tensors, check));
}

SummationService SummationService::serve(Job& job, const SummationOptions& options) {
  return SummationService(Handle::make(job, options, {}, [&] { throwIfError(options.validate()); }));
}

SummationService::Handle& SummationService::handle() const {
  if (!handle_) raise(failedPrecondition("this SummationService is none"));
  return *handle_;
}

bool SummationService::isServer() const {
  const Participant* participant = handle().participant.get();
  return participant != nullptr && !participant->isWorker(participant->self());
}

bool SummationService::isFirst() const {
  const Participant* participant = handle().participant.get();
  return participant != nullptr && participant->self() == 0;
}

Future<void> SummationService::sum(std::string_view tensor, MutableBytes data, group::DataType type) {
  const Handle& here = handle();
  const auto found = here.places.find(tensor);
  if (found == here.places.end()) raise(notFound("the summation service has no tensor '" + std::string(tensor) + "'"));
  const group::DataType declared = here.types[found->second];
  if (type != declared)
    raise(invalidArgument("'" + std::string(tensor) + "' was declared as " + std::string(nameOf(declared)) + ", not " +
                          std::string(nameOf(type))));
  return here.team ? here.team->sum(found->second, data) : here.participant->pump().sum(found->second, data);
}

Future<void> SummationService::leave() {
  const Handle& here = handle();
  here.team ? here.team->leave() : here.participant->pump().leave();
  return ended();
}

void SummationService::fail(const Status& why) {
  const Handle& here = handle();
  if (why.ok()) raise(invalidArgument("a summation service fails with an error, and this status is OK"));
  if (ended().ready()) return;
  here.team ? here.team->fail(why) : here.participant->giveUp(why).ignore();
}

Future<void> SummationService::ended() const {
  const Handle& here = handle();
  return here.team ? here.team->ended() : here.participant->pump().ended();
}

SummationTimes SummationService::times() const {
  const Participant* participant = handle().participant.get();
  return participant != nullptr ? participant->pump().times() : SummationTimes();
}

}  // namespace treadle::summation

#include "treadle/train/ddp/average_by.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/core/group/group_core.h"
#include "treadle/core/group/group_service.h"
#include "treadle/core/summation/service.h"
#include "treadle/core/summation/services.h"
#include "treadle/train/ddp/any_algorithm.h"
#include "treadle/train/ddp/distributed_data_parallel.h"
#include "treadle/train/ddp/operations.h"
#include "treadle/train/ddp/summation_hook.h"

namespace treadle::ddp {
namespace {

constexpr int kFewestHosts = 3;  // two gain nothing

// Those that share the network of their host with no rank, and with no server before them.
std::vector<std::string> withOwnHost(const ProcessGroup& group, const std::vector<std::string>& servers) {
  std::vector<std::string> names = group.members();
  const size_t ranks = names.size();
  names.insert(names.end(), servers.begin(), servers.end());
  std::vector<std::string> own;
  for (const std::vector<int>& here : valueOrThrow(summation::jobOf(group).groups().placementOf(names)).ranksByHost()) {
    const auto first = static_cast<size_t>(here.front());  // ranks come before servers
    if (first >= ranks) own.push_back(names[first]);
  }
  return own;
}

// Ranks of one host are a team where there are several hosts, and all sums of a pass may be under way.
bool fitsInTeams(const AverageConditions& conditions) {
  const bool hasTeams = conditions.hosts > 1 && conditions.ranks > conditions.hosts;
  return !hasTeams || conditions.parameters <= summation::kMostSumsInTeam;
}

// Of a service that is forced.
void checkTeams(const AverageConditions& conditions) {
  if (fitsInTeams(conditions)) return;
  raise(invalidArgument("DdpOptions::averageBy is kService, the module has " + std::to_string(conditions.parameters) +
                        " trained parameters, and ranks that share a host have at most " +
                        std::to_string(summation::kMostSumsInTeam) + " sums under way: use kGroup"));
}

struct Agreement {
  std::vector<std::string> servers;  // that no rank has lost
  bool forcesAlgorithm;              // on some rank
};

// `lost`: servers that this rank has lost while it made a service.
Agreement agree(const ProcessGroup& group, const summation::Services& services, const std::vector<std::string>& lost) {
  const std::vector<std::string> servers = services.servers();
  // A tensor, which the all-reduce keeps alive: a thread that must not wait leaves at once.
  at::Tensor answers = at::empty({static_cast<int64_t>(servers.size()) + 1}, at::kByte);
  auto* answer = answers.data_ptr<uint8_t>();
  for (size_t i = 0; i < servers.size(); ++i)
    answer[i] = services.isConnected(servers[i]) && std::ranges::count(lost, servers[i]) == 0 ? 1 : 0;
  answer[servers.size()] = group.algorithm() == group::Algorithm::kAutomatic ? 1 : 0;
  allReduce(byAnyAlgorithm(group), answers, ReduceOp::kMin).wait();
  Agreement agreement{{}, answer[servers.size()] == 0};
  for (size_t i = 0; i < servers.size(); ++i)
    if (answer[i] != 0) agreement.servers.push_back(servers[i]);
  return agreement;
}

bool allHave(const ProcessGroup& group, const SummationService& service) {
  at::Tensor answer = at::full({1}, service.valid() ? 1 : 0, at::kByte);
  allReduce(byAnyAlgorithm(group), answer, ReduceOp::kMin).wait();
  return answer.item<uint8_t>() != 0;
}

// Where a server is lost meanwhile, all ranks make a service again, without it.
std::shared_ptr<CommHook> agreedHook(const ParameterList& list, const ProcessGroup& group, const DdpOptions& options,
                                     const summation::Services& services, AverageConditions conditions) {
  std::vector<std::string> lost;
  Status why = peerLost("", "another rank has lost a worker");  // where this rank has made the last service
  for (std::optional<std::vector<std::string>> before;;) {
    Agreement agreement = agree(group, services, lost);
    if (options.averageBy == AverageBy::kAutomatic) agreement.servers = withOwnHost(group, agreement.servers);
    conditions.servers = agreement.servers.size();
    conditions.forcesAlgorithm = agreement.forcesAlgorithm;
    if (before == agreement.servers) raise(why);
    before = agreement.servers;
    if (!isByService(options.averageBy, conditions)) return std::make_shared<AverageHook>();
    SummationService service;
    try {
      service = makeGradientService(group, list, agreement.servers, options);
    } catch (const PeerLostError& error) {  // of a server, or of a rank that has lost one
      why = error.status();
      lost.push_back(error.worker());
    }
    if (allHave(group, service))
      return std::make_shared<SummationHook>(group, list, std::move(service), std::move(agreement.servers),
                                             options.compression);
  }
}

}  // namespace

const char* nameOf(AverageBy averageBy) {
  switch (averageBy) {
    case AverageBy::kAutomatic: return "kAutomatic";
    case AverageBy::kGroup: return "kGroup";
    case AverageBy::kService: break;
  }
  return "kService";
}

bool isByService(AverageBy averageBy, const AverageConditions& conditions) {
  if (conditions.ranks == 1) return false;
  if (averageBy != AverageBy::kAutomatic) return averageBy == AverageBy::kService;
  return conditions.servers > 0 && conditions.hosts >= kFewestHosts && !conditions.forcesAlgorithm &&
         fitsInTeams(conditions);
}

std::shared_ptr<CommHook> makeAverageHook(const ParameterList& list, const ProcessGroup& group,
                                          const DdpOptions& options) {
  const AverageBy averageBy = options.averageBy;
  if (averageBy == AverageBy::kGroup || group.size() == 1) return std::make_shared<AverageHook>();
  const summation::Services& services = summation::jobOf(group).services();
  AverageConditions conditions{.ranks = group.size(),
                               .hosts = group.core().surroundings().placement.hosts(),
                               .servers = services.servers().size(),
                               .parameters = list.trained().size()};
  if (!isByService(averageBy, conditions)) return std::make_shared<AverageHook>();
  if (averageBy == AverageBy::kService) checkTeams(conditions);  // on all ranks alike
  // A rank on which this fails may have made one service fewer than the others, and theirs would never meet it again.
  try {
    return agreedHook(list, group, options, services, conditions);
  } catch (...) {
    const Status why = statusOfCurrentException("the summation service of gradients");
    abandonGroup(group, "could not make the summation service of its gradients (" + why.message() + ")", why);
    raise(why.withContext(std::string("DdpOptions::averageBy is ") + nameOf(averageBy) +
                          ", and kGroup needs no servers"));
  }
}

}  // namespace treadle::ddp

#include "treadle/cli/plan_command.h"

#include <initializer_list>
#include <iostream>
#include <memory>
#include <optional>
#include <vector>

#include "treadle/cli/explanation.h"
#include "treadle/cli/measure.h"
#include "treadle/cli/numbers.h"
#include "treadle/cli/place.h"
#include "treadle/cli/plan.h"
#include "treadle/cli/plan_help.h"
#include "treadle/cli/run.h"
#include "treadle/cli/service_plan.h"
#include "treadle/cli/topology_plan.h"
#include "treadle/core/base/error.h"
#include "treadle/core/cluster/costs.h"
#include "treadle/core/group/choice.h"
#include "treadle/core/group/options.h"

namespace treadle::cli {
namespace {

// The plans of all members are made; a direct one has a transfer for each two of them.
constexpr int kMostMembers = 1024;

constexpr const char* kPlanCommand = "treadle plan";

struct PlanChoice {
  std::string operation = "allReduce", members, size = "1048576", type = "float32", reduction = "sum", algorithm,
              smallBytes, chunkBytes, hosts, latency, bandwidth, networkLatency, networkBandwidth, messageCost, cores;
  bool measure = false, byRank = false, json = false;
  ServiceChoice service;
  std::string machine;  // a file: the plan is of the GPUs of one machine
};

Result<uint64_t> bytesIn(const std::string& option, const std::string& text) {
  if (auto bytes = numberIn<uint64_t>(text, 0, kMostBytesOfSum)) return *bytes;
  return invalidArgument(option + " is '" + text + "', not a number of bytes");
}

Result<group::GroupOptions> groupOptions(const PlanChoice& choice) {
  group::GroupOptions options;
  for (auto [option, text, bytes] : {std::tuple("--small-bytes", &choice.smallBytes, &options.smallBytes),
                                     std::tuple("--chunk-bytes", &choice.chunkBytes, &options.chunkBytes)}) {
    if (text->empty()) continue;
    Result<uint64_t> given = bytesIn(option, *text);
    if (!given.ok()) return std::move(given).status();
    *bytes = *given;
  }
  if (!choice.algorithm.empty()) {
    Result<group::Algorithm> algorithm = algorithmNamed(choice.algorithm);
    if (!algorithm.ok()) return std::move(algorithm).status();
    options.algorithm = *algorithm;
  }
  if (choice.byRank) options.sumOrder = group::SumOrder::kRank;
  TREADLE_RETURN_IF_ERROR(options.validate());
  return options;
}

Result<cluster::Costs> readCosts(const PlanChoice& choice) {
  std::string text;
  for (auto [option, value] : {std::pair("--latency ", &choice.latency), std::pair("--bandwidth ", &choice.bandwidth),
                               std::pair("--network-latency ", &choice.networkLatency),
                               std::pair("--network-bandwidth ", &choice.networkBandwidth),
                               std::pair("--message-cost ", &choice.messageCost), std::pair("--cores ", &choice.cores)})
    if (!value->empty()) text += option + *value + " ";
  if (choice.measure && !text.empty())
    return invalidArgument("--measure is in place of costs such as " + text.substr(0, text.find(' ')));
  return cluster::parseCosts(text);
}

Result<group::Surroundings> readSurroundings(const PlanChoice& choice) {
  auto members = numberIn<int>(choice.members.empty() ? "4" : choice.members, 2, kMostMembers);
  if (!members)
    return invalidArgument("--members is '" + choice.members + "', not a number from 2 to " +
                           std::to_string(kMostMembers));
  auto hosts = numberIn<int>(choice.hosts.empty() ? "1" : choice.hosts, 1, *members);
  if (!hosts)
    return invalidArgument("--hosts is '" + choice.hosts + "', not a number from 1 to " + std::to_string(*members) +
                           ", the members");
  Result<cluster::Costs> costs = readCosts(choice);
  if (!costs.ok()) return std::move(costs).status();
  return group::Surroundings{group::Placement::spread(*members, *hosts), *costs};
}

// What is to be planned, and in which group.
struct Request {
  PlannedCall call;
  group::GroupOptions options;
};

Result<Request> readRequest(const PlanChoice& choice) {
  Result<group::OperationKind> operation = operationNamed(choice.operation);
  if (!operation.ok()) return std::move(operation).status();
  Result<group::DataType> type = dataTypeNamed(choice.type);
  if (!type.ok()) return std::move(type).status();
  Result<group::ReduceOp> reduction = reduceOpNamed(choice.reduction);
  if (!reduction.ok()) return std::move(reduction).status();
  Result<uint64_t> bytes = bytesIn("--size", choice.size);
  if (!bytes.ok()) return std::move(bytes).status();
  Result<group::Surroundings> surroundings = readSurroundings(choice);
  if (!surroundings.ok()) return std::move(surroundings).status();
  Result<group::GroupOptions> options = groupOptions(choice);
  if (!options.ok()) return std::move(options).status();
  PlannedCall call{{*operation, *type, *reduction}, std::move(*surroundings), options->sumOrder};
  if (*operation != group::OperationKind::kBarrier) call.what.count = *bytes / sizeOf(*type);
  call.what.smallBytes = options->smallBytes;
  call.what.chunkBytes = options->chunkBytes;
  TREADLE_RETURN_IF_ERROR(checkReduces(*type, *reduction));
  return Request{std::move(call), std::move(*options)};
}

// In a job all that a group of its workers has; otherwise the costs alone.
Result<group::Surroundings> measured(const PlanChoice& choice, const Place& place, group::Surroundings given) {
  const Launch& launch = place.launch();
  if (launch.open() || launch.workers() < 2)
    return invalidArgument("--measure needs a job of a fixed number of workers, at least 2");
  if (!place.startedOther() && !(choice.members.empty() && choice.hosts.empty()))
    return invalidArgument("--measure has the members and hosts of its job: leave --members and --hosts out");
  group::Surroundings found = measuredIn(launch);
  if (place.startedOther()) found.placement = std::move(given.placement);
  return found;
}

int refuse(const Status& why) {
  return complain(kPlanCommand, why.message() + "; see `treadle plan --help`", kExitUsage);
}

int runServicePlan(ServiceChoice choice, const std::string& bandwidth, bool json) {
  choice.bandwidth = bandwidth;
  Result<ServicePlan> plan = readServicePlan(choice);
  if (!plan.ok()) return refuse(plan.status());
  std::cout << (json ? serviceJson(*plan) : serviceTable(*plan)) << std::flush;
  return 0;
}

int runTopologyPlan(const std::string& machine, const std::string& bytes, bool json) {
  Result<TopologyPlan> plan = readTopologyPlan(machine, bytes);
  if (!plan.ok()) return refuse(plan.status());
  std::cout << (json ? topologyJson(*plan) : topologyTable(*plan)) << std::flush;
  return 0;
}

// The bandwidths are those of the run's machines.
int runExplanation(ServiceChoice choice, const std::string& bandwidth, bool json) {
  if (!(choice.workers + choice.servers + choice.bytes + choice.model + choice.tensors).empty())
    return refuse(
        invalidArgument("--explain has the machines and bytes of its run: leave --workers, --servers, "
                        "--bytes, --model and --tensors out"));
  if (bandwidth.empty() && !choice.serverBandwidth.empty())
    return refuse(invalidArgument("--server-bandwidth is given, and not --bandwidth"));
  Result<std::vector<ServiceRun>> runs = readRuns(choice.explain);
  if (!runs.ok()) return complain(kPlanCommand, runs.status().message(), kExitCannotStart);
  choice.bandwidth = bandwidth;
  std::vector<std::optional<summation::Bandwidths>> all;
  for (const ServiceRun& run : *runs) {
    if (bandwidth.empty()) {
      all.emplace_back();
      continue;
    }
    choice.workers = std::to_string(run.front().workers.size());
    choice.servers = std::to_string(run.front().servers.size());
    Result<summation::Bandwidths> bandwidths = readBandwidths(choice);
    if (!bandwidths.ok()) return refuse(bandwidths.status().withContext("service '" + run.front().service + "'"));
    all.emplace_back(std::move(*bandwidths));
  }
  if (json) {
    std::cout << explanationJson(*runs, all) << std::flush;
    return 0;
  }
  for (size_t i = 0; i < runs->size(); ++i) std::cout << (i == 0 ? "" : "\n") << explanationTable((*runs)[i], all[i]);
  std::cout << explanationLegend() << std::flush;
  return 0;
}

int runPlan(const PlanChoice& choice, const CommandLine& line) try {
  if (line.separated) return refuse(invalidArgument("it starts no program"));
  if (!choice.machine.empty()) return runTopologyPlan(choice.machine, choice.service.bytes, choice.json);
  if (!choice.service.explain.empty()) return runExplanation(choice.service, choice.bandwidth, choice.json);
  if (choice.service.given()) return runServicePlan(choice.service, choice.bandwidth, choice.json);
  Result<Request> request = readRequest(choice);
  if (!request.ok()) return refuse(request.status());
  auto& [call, options] = *request;
  std::optional<Place> place;
  if (choice.measure) {
    Result<Place> found = Place::find({"plan", "--measure"});
    if (!found.ok()) return complain(kPlanCommand, found.status().message(), kExitCannotStart);
    place = std::move(*found);
    Result<group::Surroundings> surroundings = measured(choice, *place, call.surroundings);
    if (!surroundings.ok()) return refuse(surroundings.status());
    call.surroundings = std::move(*surroundings);
    if (place->launch().rank != 0) return 0;
  }
  Result<group::Algorithm> algorithm = choose(options, call.what, call.surroundings);
  if (!algorithm.ok()) return refuse(algorithm.status());
  call.what.algorithm = *algorithm;
  std::cout << (choice.json ? planJson(call) : planTable(call)) << std::flush;
  return 0;
} catch (const Error& error) {
  return complain(kPlanCommand, error.what(), kExitCannotStart);
}

using Options = std::vector<CLI::Option*>;

struct TextOption {
  const char* name;
  std::string* text;
  const char* help;
  const char* type;
};

Options addTextOptions(CLI::App* command, std::initializer_list<TextOption> options) {
  Options added;
  for (const auto& [name, text, help, type] : options)
    added.push_back(command->add_option(name, *text, help)->expected(0, 1)->type_name(type));
  return added;
}

// Those of a collective operation alone.
Options addOperationOptions(CLI::App* command, PlanChoice* choice) {
  Options added = addTextOptions(
      command, {{"--operation", &choice->operation, "(allReduce)", "NAME"},
                {"--members", &choice->members, "of the group (4)", "N"},
                {"--size", &choice->size, "of the whole data, in bytes (1048576)", "N"},
                {"--type", &choice->type, "of the elements (float32)", "NAME"},
                {"--reduction", &choice->reduction, "sum, average, min, max or product (sum)", "NAME"},
                {"--algorithm", &choice->algorithm,
                 "forces exchange, tree, root, ring, circulant, direct or hierarchical", "NAME"},
                {"--small-bytes", &choice->smallBytes, "GroupOptions::smallBytes (65536)", "N"},
                {"--chunk-bytes", &choice->chunkBytes, "GroupOptions::chunkBytes (262144)", "N"},
                {"--hosts", &choice->hosts, "on which the members run, as many on each (1)", "N"},
                {"--latency", &choice->latency, "of a message on one host, in us (8)", "US"},
                {"--network-latency", &choice->networkLatency, "of a message between hosts, in us (18)", "US"},
                {"--network-bandwidth", &choice->networkBandwidth, "between hosts, in MB/s (1180)", "MB/S"},
                {"--message-cost", &choice->messageCost, "processor time of a message, in us (10)", "US"},
                {"--cores", &choice->cores, "of each host (2)", "N"}});
  added.push_back(command->add_flag("--measure", choice->measure, "the costs, in place of the options for them"));
  added.push_back(command->add_flag("--by-rank", choice->byRank, "with GroupOptions::sumOrder = kRank"));
  return added;
}

// Those of a summation service alone.
Options addServiceOptions(CLI::App* command, ServiceChoice* choice) {
  return addTextOptions(
      command,
      {{"--workers", &choice->workers, "of a summation service (4)", "N"},
       {"--servers", &choice->servers, "machines that only sum (0)", "N"},
       {"--server-bandwidth", &choice->serverBandwidth, "of the servers' networks (that of the workers)", "MB/S"},
       {"--bytes", &choice->bytes, "that each worker, or GPU, gives to one sum (64000000)", "N"},
       {"--model", &choice->model, "in place of --bytes: its parameters", "NAME"},
       {"--tensors", &choice->tensors, "in place of --bytes: those listed in a file", "FILE"}});
}

CLI::Option* addFileOption(CLI::App* command, const std::string& name, std::string* path, const char* type,
                           const std::string& help) {
  const auto isGiven = [type](const std::string& text) {
    return text.empty() ? std::string("it needs a ") + type : std::string();
  };
  return command->add_option(name, *path, help)->type_name(type)->check(isGiven);
}

void exclude(const Options& some, const Options& others) {
  for (CLI::Option* one : some) {
    for (CLI::Option* other : others) one->excludes(other);
  }
}

}  // namespace

void addPlanCommand(CLI::App& app, const CommandLine& line, int* exitCode) {
  auto choice = std::make_shared<PlanChoice>();
  CLI::App* command = app.add_subcommand("plan", "Show how a collective operation or a service's sum moves its data");
  command->footer(kPlanHelp);
  const Options ofOperation = addOperationOptions(command, choice.get());
  const Options bandwidth = addTextOptions(
      command,
      {{"--bandwidth", &choice->bandwidth, "on one host, in MB/s (6000); of a worker's network (1180)", "MB/S"}});
  Options ofService = addServiceOptions(command, &choice->service);
  ofService.push_back(addFileOption(command, "--explain", &choice->service.explain, "FOLDER",
                                    "where the time of a run went that wrote its times there"));
  CLI::Option* machine = addFileOption(command, "--machine", &choice->machine, "FILE",
                                       "how the GPUs of the machine in FILE would sum (JSON, see below)");
  exclude({machine}, ofOperation);
  exclude({machine}, bandwidth);
  exclude(ofService, ofOperation);
  std::erase_if(ofService, [](const CLI::Option* one) { return one->check_name("--bytes"); });  // both have these
  exclude({machine}, ofService);
  command->add_flag("--json", choice->json, "the same as JSON");
  command->callback([choice, &line, exitCode] { *exitCode = runPlan(*choice, line); });
}

}  // namespace treadle::cli

#include "treadle/cli/plan_command.h"

#include <iostream>
#include <memory>

#include "treadle/cli/numbers.h"
#include "treadle/cli/plan.h"
#include "treadle/cli/run.h"
#include "treadle/core/cluster/costs.h"
#include "treadle/core/group/choice.h"
#include "treadle/core/group/options.h"

namespace treadle::cli {
namespace {

// The plans of all members are made; a direct one has a transfer for each two of them.
constexpr int kMostMembers = 1024;
constexpr uint64_t kMostBytes = uint64_t{1} << 50;

constexpr const char* kPlanCommand = "treadle plan";
constexpr const char* kPlanExplanation = R"(Examples:
  treadle plan                                        an all-reduce of 1 MiB among 4 members
  treadle plan --members 64 --size 400                what 100 floats cost in a large group
  treadle plan --operation broadcast --size 40000000
  treadle plan --operation allGather --members 64 --type uint8 --size 262144     blocks of 4 KiB
  treadle plan --type bfloat16 --algorithm direct     with that algorithm forced, as GroupOptions::algorithm does
  treadle plan --members 8 --hosts 2 --network-latency 25 --network-bandwidth 10000

Prints for each algorithm what a member sends, how many messages wait for one another and how long it takes by
the costs of links, or why it cannot do the operation; an arrow marks the one that a group takes. It starts
nothing and sends nothing.

A job measures its costs when it starts. Its rank 0 prints them as these options with TREADLE_LOG=info. Latencies
and the cost of a message are in microseconds, bandwidths in MB (10^6 bytes) per second.

Operations: allReduce, reduce, reduceScatter, broadcast, allGather, gather, scatter, allToAll, barrier.
--size is that of the whole data in bytes: of a reduction what each member gives, else all blocks together.

Exit code 2: wrong usage, or a forced algorithm that cannot do the operation.)";

struct PlanChoice {
  std::string operation = "allReduce", members = "4", size = "1048576", type = "float32", reduction = "sum", algorithm,
              smallBytes, chunkBytes, hosts = "1", latency, bandwidth, networkLatency, networkBandwidth, messageCost,
              cores;
  bool byRank = false, json = false;
};

Result<uint64_t> bytesIn(const std::string& option, const std::string& text) {
  if (auto bytes = numberIn<uint64_t>(text, 0, kMostBytes)) return *bytes;
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
  return cluster::parseCosts(text);
}

Result<group::Surroundings> readSurroundings(const PlanChoice& choice) {
  auto members = numberIn<int>(choice.members, 2, kMostMembers);
  if (!members)
    return invalidArgument("--members is '" + choice.members + "', not a number from 2 to " +
                           std::to_string(kMostMembers));
  auto hosts = numberIn<int>(choice.hosts, 1, *members);
  if (!hosts)
    return invalidArgument("--hosts is '" + choice.hosts + "', not a number from 1 to " + std::to_string(*members) +
                           ", the members");
  Result<cluster::Costs> costs = readCosts(choice);
  if (!costs.ok()) return std::move(costs).status();
  return group::Surroundings{group::Placement::spread(*members, *hosts), *costs};
}

Result<PlannedCall> readCall(const PlanChoice& choice, const CommandLine& line) {
  if (line.separated) return invalidArgument("it starts no program");
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
  Result<group::Algorithm> algorithm = choose(*options, call.what, call.surroundings);
  if (!algorithm.ok()) return std::move(algorithm).status();
  call.what.algorithm = *algorithm;
  return call;
}

int runPlan(const PlanChoice& choice, const CommandLine& line) {
  Result<PlannedCall> call = readCall(choice, line);
  if (!call.ok()) return complain(kPlanCommand, call.status().message() + "; see `treadle plan --help`", kExitUsage);
  std::cout << (choice.json ? planJson(*call) : planTable(*call)) << std::flush;
  return 0;
}

}  // namespace

void addPlanCommand(CLI::App& app, const CommandLine& line, int* exitCode) {
  auto choice = std::make_shared<PlanChoice>();
  CLI::App* command = app.add_subcommand("plan", "Show how a collective operation would move its data");
  command->footer(kPlanExplanation);
  auto option = [&](const char* name, std::string& text, const char* help, const char* type) {
    command->add_option(name, text, help)->expected(0, 1)->type_name(type);
  };
  option("--operation", choice->operation, "(allReduce)", "NAME");
  option("--members", choice->members, "of the group (4)", "N");
  option("--size", choice->size, "of the whole data, in bytes (1048576)", "N");
  option("--type", choice->type, "of the elements (float32)", "NAME");
  option("--reduction", choice->reduction, "sum, average, min, max or product (sum)", "NAME");
  option("--algorithm", choice->algorithm, "forces exchange, tree, root, ring, circulant, direct or hierarchical",
         "NAME");
  option("--small-bytes", choice->smallBytes, "GroupOptions::smallBytes (65536)", "N");
  option("--chunk-bytes", choice->chunkBytes, "GroupOptions::chunkBytes (262144)", "N");
  option("--hosts", choice->hosts, "on which the members run, as many on each (1)", "N");
  option("--latency", choice->latency, "of a message on one host, in us (8)", "US");
  option("--bandwidth", choice->bandwidth, "on one host, in MB/s (6000)", "MB/S");
  option("--network-latency", choice->networkLatency, "of a message between hosts, in us (18)", "US");
  option("--network-bandwidth", choice->networkBandwidth, "between hosts, in MB/s (1180)", "MB/S");
  option("--message-cost", choice->messageCost, "processor time of a message, in us (10)", "US");
  option("--cores", choice->cores, "of each host (2)", "N");
  command->add_flag("--by-rank", choice->byRank, "with GroupOptions::sumOrder = kRank");
  command->add_flag("--json", choice->json, "the same as JSON");
  command->callback([choice, &line, exitCode] { *exitCode = runPlan(*choice, line); });
}

}  // namespace treadle::cli

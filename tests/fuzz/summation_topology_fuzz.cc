// The description of a machine, which `treadle plan --machine` reads, and the strategies to sum that follow from it.

#include <cmath>

#include "tests/core/summation/local_plan_oracle.h"
#include "tests/fuzz/fuzzer.h"
#include "treadle/cli/topology_file.h"

namespace treadle::fuzz::summation_topology_fuzz {
namespace {

constexpr uint64_t kBytes = 12'345;
constexpr size_t kFewGpus = 8;  // the oracle is slow

void feed(Bytes input) {
  const Result<summation::Topology> topology =
      cli::parseTopology({reinterpret_cast<const char*>(input.data()), input.size()});
  if (!topology.ok())
    return promise(topology.status().code() == Code::kInvalidArgument, "other text is refused in one way");
  promise(!topology->gpus.empty(), "a machine has a GPU");
  for (const auto& gpu : topology->gpus) promise(gpu.underSwitch < topology->switches.size(), "a switch is there");
  const summation::LocalPlan plan = planLocally(*topology, kBytes);
  for (const summation::LocalStrategy& one : plan.strategies) {
    promise(std::isfinite(one.seconds()) && plan.chosen().seconds() <= one.seconds(),
            "the chosen strategy takes least");
    if (topology->gpus.size() > kFewGpus) continue;
    promise(summation::oracle::faultOf(*topology, one, kBytes).empty(), "each GPU ends with the sum");
  }
}

Inputs seeds() {
  Inputs all;
  const std::string machine =
      R"("switches":[{"name":"s0","uplink":10},{"name":"s1","uplink":10}],"gpus":[{"name":"g0",)"
      R"("switch":"s0","link":13.1},{"name":"g1","switch":"s1","link":13.1}])";
  const std::string rest =
      R"(,"nics":[{"name":"n0","switch":"s0","link":12}],"nvlinks":[{"gpus":["g0","g1"],"link":25}])";
  for (const std::string& one : {"{" + machine + "}", "{" + machine + rest + "}",
                                 "{" + machine + rest + R"(,"memory":60})", "{" + machine, "[" + machine + "]"})
    all.push_back(bytesOf(one));
  return all;
}

const Fuzzer kSummationTopology("summation_topology", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::summation_topology_fuzz

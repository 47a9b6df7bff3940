// `treadle plan` of a summation service, as a user meets it.

#include "treadle/cli/service_plan.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/launcher.h"
#include "treadle/cli/known_models.h"

namespace treadle::cli::service_plan_test {
namespace {

using summation::Bandwidths;

void expectHas(const std::string& text, const std::string& part) {
  EXPECT_NE(std::string::npos, text.find(part)) << "no '" << part << "' in:\n" << text;
}

std::string planOf(std::vector<std::string> options) {
  options.insert(options.begin(), "plan");
  Launcher launcher(options);
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  return launcher.out();
}

// n = 4, k = 2: n^2 + kn - 2k = 20. A worker sums 2 / 20 of 20 MB, a server 6 / 20; each machine moves 24 / 20 of them
// each way. A ring moves 30 MB, and the servers alone 40 MB each.
TEST(ServicePlan, ShowsWhatEachMachineSumsAndTheTimeBesideOthers) {
  const std::string text = planOf({"--workers", "4", "--servers", "2", "--bandwidth", "80Mbit", "--bytes", "20000000"});
  expectHas(text, "sum of 19.1 MiB in 1 tensor among 4 workers with 2 servers\n");
  expectHas(text, "   workers 0-3       10.0 MB/s     10.00%   1.9 MiB     22.9 MiB    100%  ####");
  expectHas(text, "   servers 0-1       10.0 MB/s     30.00%   5.7 MiB     22.9 MiB    100%  ####");
  expectHas(text, "   least             2.40 s      1.000     ############");
  expectHas(text, "   ring              3.00 s      1.250     ");
  expectHas(text, "   parameter servers 4.00 s      1.667     ########################################\n");
}

TEST(ServicePlan, TakesABandwidthForEachMachine) {
  const auto json = nlohmann::json::parse(planOf({"--workers", "3", "--servers", "1", "--bandwidth", "10,10MB,40Mbit",
                                                  "--server-bandwidth", "1Gbit", "--bytes", "10000000", "--json"}));
  ASSERT_EQ(4u, json["machines"].size());
  const std::vector<double> expected = {10e6, 10e6, 5e6, 125e6};
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_EQ(expected[i], json["machines"][i]["bytes_per_second"]) << i;
  EXPECT_DOUBLE_EQ(2, json["seconds"]["least"]) << "the slowest worker moves its own data once";
}

TEST(ServicePlan, OfTwoWorkersSaysThatServersGainNothing) {
  const std::string text = planOf({"--workers", "2", "--servers", "2"});
  expectHas(text, "Two workers gain nothing by servers");
  expectHas(text, "   ring              54.24 ms    1.000 ");
}

TEST(ServicePlan, OfOneWorkerMovesNothing) {
  const std::string text = planOf({"--workers", "1", "--servers", "1"});
  expectHas(text, "   least             0.0 us      - ");
  EXPECT_EQ(std::string::npos, text.find("nan"));
}

TEST(ServicePlan, WithoutServersHasNoParameterServers) {
  expectHas(planOf({"--workers", "4"}), "   parameter servers -\n");
  expectHas(planOf({"--servers", "5"}), "   service by hash   -\n");
}

TEST(ServicePlan, PlacesTheTensorsOfAFile) {
  const std::string path = std::filesystem::temp_directory_path() / ("tensors" + std::to_string(::getpid()));
  std::ofstream(path) << "# a comment\n4000 weight\n\n400\tbias\n";
  const auto json = nlohmann::json::parse(planOf({"--tensors", path, "--workers", "2", "--json"}));
  EXPECT_EQ(4400, json["bytes"]);
  EXPECT_EQ(2u, json["parts"].size());
  std::ofstream(path) << "4000\nweight 400\n";
  Launcher wrong({"plan", "--tensors", path});
  EXPECT_EQ(2, wrong.finish());
  expectHas(wrong.err(), "line 2 of " + path + " does not begin with a tensor's bytes");
  std::ofstream(path) << "1099511627776\n1\n";
  Launcher large({"plan", "--tensors", path});
  EXPECT_EQ(2, large.finish());
  expectHas(large.err(), path + " has more than a service sums, 1 TiB");
  std::filesystem::remove(path);
}

TEST(ServicePlan, RefusesWhatItCannotMean) {
  const std::pair<std::vector<std::string>, std::string> kCases[] = {
      {{"--workers", "0"}, "--workers is '0', not a number from 1 to 1024"},
      {{"--servers", "x"}, "--servers is 'x', not a number from 0 to 1024"},
      {{"--servers", "2", "--bandwidth", "10Mb"},
       "--bandwidth has '10Mb', not a bandwidth such as 25, 200Mbit or 10Gbit"},
      {{"--servers", "2", "--bandwidth", "0"}, "--bandwidth has '0'"},
      {{"--workers", "1", "--bandwidth", "10,"}, "--bandwidth has ''"},
      {{"--servers", "2", "--bandwidth", "nan"}, "--bandwidth has 'nan'"},
      {{"--workers", "3", "--bandwidth", "10,20"}, "--bandwidth has 2 bandwidths for 3 machines"},
      {{"--workers", "2", "--servers", "2", "--bandwidth", "10,20"}, "give --server-bandwidth too"},
      {{"--bytes", "0"}, "--bytes is '0', not a whole number from 1 to 1099511627776"},
      {{"--model", "alexnet"}, "there is no model 'alexnet'; there are resnet50"},
      {{"--model", "gpt2", "--bytes", "4"}, "--bytes, --model and --tensors exclude each other"},
      {{"--tensors", "/nowhere"}, "--tensors is '/nowhere', which cannot be read"},
      {{"--tensors", "/dev/null"}, "there is no byte to sum"},
      {{"--bytes", "1099511627777"}, "--bytes is '1099511627777'"},
      {{"--workers", "4", "--members", "4"}, "--members"},
      {{"--workers", "4", "--measure"}, "--measure"},
      {{"--workers", "4", "--", "program"}, "it starts no program"},
  };
  for (auto [options, part] : kCases) {
    options.insert(options.begin(), "plan");
    Launcher launcher(options);
    EXPECT_EQ(2, launcher.finish()) << part;
    expectHas(launcher.err(), part);
    expectHas(launcher.err(), "treadle plan: ");
  }
}

// ---- models

struct Network {
  size_t workers, servers;
};

double lossOf(const std::vector<summation::Part>& parts, const Network& network) {
  const Bandwidths even = Bandwidths::even(network.workers, network.servers, 1);
  return seconds(sharesOf(parts, network.workers, network.servers), even, 1) / leastSeconds(even, 1);
}

struct Loss {
  const char* model;
  double ofFour, ofEight;  // by hash, computed once
};

// By hash a model takes 1.04 to 1.75 times the least time: the fewer parts it has, the more.
TEST(ModelsOfThePlan, TakeTheLeastTimeWherePlacedBySharesAndMoreByHash) {
  for (const auto& [model, ofFour, ofEight] : {Loss{"resnet50", 1.247, 1.752},
                                               {"vgg16", 1.209, 1.241},
                                               {"bert-large", 1.040, 1.119},
                                               {"gpt2", 1.046, 1.136},
                                               {"transformer", 1.093, 1.452}}) {
    const std::vector<uint64_t> tensors = *parametersOf(model);
    for (const auto& [network, byHash] : {std::pair(Network{4, 2}, ofFour), {Network{8, 4}, ofEight}}) {
      SCOPED_TRACE(std::string(model) + " on " + std::to_string(network.workers) + " workers");
      const Bandwidths even = Bandwidths::even(network.workers, network.servers, 1);
      EXPECT_LE(lossOf(placeInOrder(tensors, bestShares(even)), network), 1.002);
      EXPECT_NEAR(byHash, lossOf(*summation::placeByHash(tensors, network.workers, network.servers), network), 0.001);
    }
  }
}

}  // namespace
}  // namespace treadle::cli::service_plan_test

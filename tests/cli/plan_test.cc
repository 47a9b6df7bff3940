// `treadle plan` as a user meets it: each algorithm with its cost and time or the reason against it, and refusals that
// say what to do.

#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/launcher.h"
#include "tests/support/places.h"

namespace treadle::cli::plan_test {
namespace {

using Strings = std::vector<std::string>;

void expectHas(const std::string& text, const std::string& part) {
  EXPECT_NE(std::string::npos, text.find(part)) << "no '" << part << "' in:\n" << text;
}

std::string planOf(Strings options) {
  options.insert(options.begin(), "plan");
  Launcher launcher(options);
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  return launcher.out();
}

TEST(Plan, showsEachAlgorithmAndMarksTheOneThatAGroupTakes) {
  const std::string text = planOf({"--members", "4", "--size", "4000000"});
  expectHas(text, "allReduce (sum) of 1000000 float32 among 4 members");
  expectHas(text, "   exchange      cannot: its data is above smallBytes\n");
  expectHas(text, "   tree          cannot: the group has at most 16 members\n");
  // 3 starts; 6 blocks of 1 MB in 4 chunks. The work of four members on two cores: 108 messages of 10 us, and 24 MB at
  // 6000 MB/s.
  expectHas(text, "-> ring          27        5.7 MiB    7      2.54 ms   cores    1.00\n");
  expectHas(text, "   direct        27        5.7 MiB    3      2.54 ms   cores    1.00\n");
  // 4 steps of 8 us, 83 messages and 20 MB one after the other.
  expectHas(text, "   root          35        7.6 MiB    4      5.20 ms   path     2.05\n");
}

TEST(Plan, predictsByTheCostsThatItIsGiven) {
  expectHas(
      planOf({}),
      "with --hosts 1 --latency 8 --bandwidth 6000 --network-latency 18 --network-bandwidth 1180 --message-cost 10 "
      "--cores 2\n");
  const Strings costs = {"--latency",           "11",  "--bandwidth",    "7000", "--network-latency", "22",
                         "--network-bandwidth", "900", "--message-cost", "4.5",  "--cores",           "32"};
  expectHas(
      planOf(costs),
      "with --hosts 1 --latency 11 --bandwidth 7000 --network-latency 22 --network-bandwidth 900 --message-cost 4.5 "
      "--cores 32\n");
  // Eight hosts, 100 MB: 15 steps of 18 us, 7 starts and 14 x 48 chunks of 10 us, 175 MB at 1180 MB/s.
  Strings apart = {"--members", "8", "--hosts", "8", "--size", "100000000"};
  expectHas(planOf(apart), "-> ring          679       166.9 MiB  15     155.37 ms path     1.00\n");
  // Four members of each of two hosts: direct blocks would share the network, and a ring would send 175 MB.
  Strings together = {"--members", "8", "--hosts", "2", "--size", "100000000", "--cores", "16"};
  expectHas(planOf(together), "-> hierarchical ");
  const auto json = nlohmann::json::parse(
      planOf({"--members", "8", "--hosts", "2", "--size", "100000000", "--cores", "16", "--json"}));
  EXPECT_EQ(2, json["hosts"]);
  EXPECT_EQ("network", json["algorithms"][5]["limit"]);
  EXPECT_NEAR(4 * 4 * 2 * 12.5e6 / 1.18e9, json["algorithms"][5]["seconds"], 1e-3);
  EXPECT_EQ("network", json["algorithms"][6]["limit"]);
  // On the hosts 150 MB and 574 chunks of each member, then between them 100 MB.
  EXPECT_NEAR(150e6 / 6e9 + 574 * 10e-6 + 100e6 / 1.18e9, json["algorithms"][6]["seconds"], 1e-3);
}

// What a job prints at the log level info can be given back.
TEST(Plan, takesTheCostsAsAJobPrintsThem) {
  const std::string text = planOf({"--cores", "3", "--latency", "7"});
  const size_t begin = text.find("--hosts"), end = text.find('\n', begin);
  Strings options;
  std::istringstream words(text.substr(begin, end - begin));
  for (std::string word; words >> word;) options.push_back(word);
  EXPECT_EQ(text, planOf(options));
}

// TREADLE_COSTS gives rank 0 of a job the costs, and then it does not measure them.
TEST(PlanMeasure, takesTheCostsOfAJobOfTwoProcessesOfThisMachine) {
  const std::string text = planOf({"--measure", "--members", "8"});
  expectHas(text, "allReduce (sum) of 262144 float32 among 8 members\nwith --hosts 1 --latency ");
  expectHas(text, "-> ");
  Launcher told({"plan", "--measure"}, {{"TREADLE_COSTS", "--latency 3 --cores 7"}});
  EXPECT_EQ(0, told.finish()) << told.err();
  expectHas(told.out(), "among 4 members\nwith --hosts 1 --latency 3 --bandwidth 6000 ");
  expectHas(told.out(), "--cores 7\n");
}

TEST(PlanMeasure, hasTheMembersOfAJobWhoseRankZeroPrints) {
  Launcher job({"run", "-n", "3", "--", test::treadleCommand(), "plan", "--measure", "--size", "400"},
               {{"TREADLE_COSTS", "--latency 3"}});
  EXPECT_EQ(0, job.finish()) << job.err();
  expectHas(job.out(), "[0] allReduce (sum) of 100 float32 among 3 members\n[0] with --hosts 1 --latency 3 ");
  EXPECT_EQ(std::string::npos, job.out().find("[1]")) << job.out();
}

TEST(PlanMeasure, saysWhyItCannot) {
  Launcher alone({"run", "-n", "1", "--", test::treadleCommand(), "plan", "--measure"});
  EXPECT_EQ(2, alone.finish());
  expectHas(alone.err(), "--measure needs a job of a fixed number of workers, at least 2");
  Launcher given({"run", "-n", "2", "--", test::treadleCommand(), "plan", "--measure", "--members", "4"});
  EXPECT_EQ(2, given.finish());
  expectHas(given.err(), "--measure has the members and hosts of its job: leave --members and --hosts out");
}

TEST(Plan, tellsTheSameAsJson) {
  const auto json = nlohmann::json::parse(planOf({"--members", "64", "--size", "400", "--json"}));
  EXPECT_EQ("tree", json["chosen"]);
  EXPECT_EQ(64, json["members"]);
  ASSERT_EQ(7u, json["algorithms"].size());
  EXPECT_EQ(6, json["algorithms"][1]["messages"]) << "log2 of 64";
  EXPECT_EQ(12, json["algorithms"][1]["steps"]);
  EXPECT_EQ("the group has more than 16 members", json["algorithms"][0]["cannot"]);
}

TEST(Plan, knowsOperationsTypesAndOptions) {
  expectHas(planOf({"--operation", "broadcast", "--size", "100"}), "-> exchange      3         300 bytes  1 ");
  expectHas(planOf({"--type", "bfloat16"}), "-> direct ");
  expectHas(planOf({"--algorithm", "circulant"}), "-> circulant ");
  // 12 messages of a member at most, in place of 69.
  expectHas(planOf({"--operation", "allGather", "--members", "64", "--type", "uint8", "--size", "262144"}),
            "-> circulant     12        252 KiB    18 ");
  expectHas(planOf({"--operation", "barrier", "--members", "20"}), "-> tree ");
  expectHas(planOf({"--operation", "allToAll", "--size", "4000"}), "-> exchange      3         2.9 KiB    1 ");
  expectHas(planOf({"--size", "4000", "--small-bytes", "0"}), "-> root ");
  expectHas(planOf({"--by-rank"}), "   ring          cannot: it does not add in the order of ranks\n");
}

TEST(Plan, refusesWhatItCannotMean) {
  const std::pair<Strings, std::string> kCases[] = {
      {{"plan", "--operation", "scan"}, "there is no operation 'scan'; there are allReduce, broadcast, barrier"},
      {{"plan", "--type", "float8"}, "there is no type 'float8'; there are float16"},
      {{"plan", "--reduction", "mean"}, "there is no reduction 'mean'; there are sum, average"},
      {{"plan", "--algorithm", "star"}, "there is no algorithm 'star'; there are exchange, tree"},
      {{"plan", "--members", "1"}, "--members is '1', not a number from 2 to 1024"},
      {{"plan", "--size", "1MB"}, "--size is '1MB', not a number of bytes"},
      {{"plan", "--chunk-bytes", "1"}, "chunkBytes is between"},
      {{"plan", "--type", "bool"}, "bool have no sum"},
      {{"plan", "--hosts", "5"}, "--hosts is '5', not a number from 1 to 4, the members"},
      {{"plan", "--hosts", "0"}, "--hosts is '0'"},
      {{"plan", "--latency", "fast"}, "'--latency fast' is none of the costs, such as --latency 8 --bandwidth 6000"},
      {{"plan", "--bandwidth", "0"}, "'--bandwidth 0' is none of the costs"},
      {{"plan", "--measure", "--cores", "4"}, "--measure is in place of costs such as --cores"},
      {{"plan", "--cores", "nan"}, "'--cores nan' is none of the costs"},
      {{"plan", "--operation", "reduce", "--algorithm", "ring"}, "these can: root, direct"},
  };
  for (const auto& [words, part] : kCases) {
    Launcher launcher(words);
    EXPECT_EQ(2, launcher.finish());
    expectHas(launcher.err(), part);
    expectHas(launcher.err(), "treadle plan: ");
  }
}

}  // namespace
}  // namespace treadle::cli::plan_test

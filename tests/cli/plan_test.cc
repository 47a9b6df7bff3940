// `treadle plan` as a user meets it: each algorithm with its cost or the reason against it, and refusals that say what
// to do.

#include <nlohmann/json.hpp>

#include "tests/cli/launcher.h"

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
  expectHas(text, "   exchange   cannot: its data is above smallBytes\n");
  expectHas(text, "   tree       cannot: the group has at most 16 members\n");
  expectHas(text, "-> ring       27        5.7 MiB    7\n");  // 3 starts; 6 blocks of 1 MB in 4 chunks
  expectHas(text, "   direct     27        5.7 MiB    3\n");
}

TEST(Plan, tellsTheSameAsJson) {
  const auto json = nlohmann::json::parse(planOf({"--members", "64", "--size", "400", "--json"}));
  EXPECT_EQ("tree", json["chosen"]);
  EXPECT_EQ(64, json["members"]);
  ASSERT_EQ(6u, json["algorithms"].size());
  EXPECT_EQ(6, json["algorithms"][1]["messages"]) << "log2 of 64";
  EXPECT_EQ(12, json["algorithms"][1]["steps"]);
  EXPECT_EQ("the group has more than 16 members", json["algorithms"][0]["cannot"]);
}

TEST(Plan, knowsOperationsTypesAndOptions) {
  expectHas(planOf({"--operation", "broadcast", "--size", "100"}), "-> exchange   3         300 bytes  1\n");
  expectHas(planOf({"--type", "bfloat16"}), "-> direct ");
  expectHas(planOf({"--algorithm", "circulant"}), "-> circulant ");
  expectHas(planOf({"--operation", "barrier", "--members", "20"}), "-> tree ");
  expectHas(planOf({"--size", "4000", "--small-bytes", "0"}), "-> ring ");
  expectHas(planOf({"--by-rank"}), "   ring       cannot: it does not add in the order of ranks\n");
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
      {{"plan", "--type", "float16", "--algorithm", "ring"}, "these can: root, direct"},
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

// A machine's description is read as it is meant, and each mistake in it is named.

#include "treadle/core/summation/topology.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/seeds.h"
#include "treadle/core/base/error.h"

namespace treadle::summation::topology_test {
namespace {

using test::contains;
using test::pick;

const std::string kSwitch = R"("switches": [{"name": "s0", "uplink": 10}])";
const std::string kGpus =
    R"("gpus": [{"name": "g0", "switch": "s0", "link": 13.1}, {"name": "g1", "switch": "s0", "link": 8}])";
const std::string kWhole = "{" + kSwitch + ", " + kGpus + R"(, "nics": [{"name": "n0", "switch": "s0", "link": 12.5},
    {"name": "n1"}], "nvlinks": [{"gpus": ["g0", "g1"], "link": 25}], "memory": 60})";

TEST(Topology, IsReadFromItsDescription) {
  const Topology read = valueOrThrow(parseTopology(kWhole));
  ASSERT_EQ(1U, read.switches.size());
  EXPECT_EQ("s0", read.switches[0].name);
  EXPECT_DOUBLE_EQ(10e9, read.switches[0].uplink);
  ASSERT_EQ(2U, read.gpus.size());
  EXPECT_EQ("g1", read.gpus[1].name);
  EXPECT_EQ(0U, read.gpus[1].underSwitch);
  EXPECT_DOUBLE_EQ(13.1e9, read.gpus[0].link);
  ASSERT_EQ(2U, read.nics.size());
  EXPECT_EQ(0U, read.nics[0].underSwitch);
  EXPECT_DOUBLE_EQ(12.5e9, read.nics[0].link);
  EXPECT_EQ(std::nullopt, read.nics[1].underSwitch) << "at the CPU";
  EXPECT_EQ(Topology::kUnlimited, read.nics[1].link);
  ASSERT_EQ(1U, read.nvlinks.size());
  EXPECT_DOUBLE_EQ(25e9, read.nvlinks[0].link);
  EXPECT_DOUBLE_EQ(60e9, read.memory);
  EXPECT_EQ((std::vector<size_t>{0, 1}), read.gpusUnder(0));
}

TEST(Topology, MayLeaveOutWhatAMachineLacks) {
  const Topology read = valueOrThrow(parseTopology("{" + kSwitch + ", " + kGpus + "}"));
  EXPECT_TRUE(read.nics.empty() && read.nvlinks.empty());
  EXPECT_EQ(Topology::kUnlimited, read.memory);
}

TEST(Topology, LinksEachTwoGpusOfAnEntry) {
  const Topology read = valueOrThrow(parseTopology(
      "{" + kSwitch + R"(, "gpus": [{"name": "a", "switch": "s0", "link": 1}, {"name": "b", "switch": "s0", "link": 1},
      {"name": "c", "switch": "s0", "link": 1}], "nvlinks": [{"gpus": ["c", "a", "b"], "link": 2}]})"));
  ASSERT_EQ(3U, read.nvlinks.size());
  EXPECT_EQ(2U, read.nvlinks[0].first);
  EXPECT_EQ(1U, read.nvlinks[2].second);
}

std::string devices(size_t count) {
  std::string all;
  for (size_t i = 0; i < count; ++i)
    all += (i == 0 ? "" : ", ") + (R"({"name": "d)" + std::to_string(i) + R"(", "uplink": 1})");
  return R"({"switches": [)" + all + "], " + kGpus + "}";
}

void expectRefused(const std::string& text, const std::string& why) {
  const Result<Topology> read = parseTopology(text);
  ASSERT_FALSE(read.ok()) << text;
  EXPECT_EQ(Code::kInvalidArgument, read.status().code());
  EXPECT_TRUE(contains(read.status().message(), why)) << text;
}

TEST(Topology, NamesWhatIsNoDescription) {
  expectRefused("", "it is no valid JSON, from byte 1 on");
  expectRefused(kWhole + " x", "it is no valid JSON, from byte");
  expectRefused(kWhole + kWhole, "it is no valid JSON, from byte");
  expectRefused(std::string("{\"memory\": \"\xff\"}"), "it is no valid JSON");
  expectRefused("[]", "the machine is no JSON object");
  expectRefused(R"({"memory": 1e999})", "a number in it is too large");
  expectRefused(R"({"memory": NaN})", "it is no valid JSON");
  expectRefused(R"({"memory": 1, "memory": 2})", "it has the field 'memory' twice");
  expectRefused(R"({"switches": [{"name": "a", "name": "b"}], "gpus": []})", "it has the field 'name' twice");
  expectRefused(R"({"memory": [[[[[1]]]]]})", "it nests deeper than any field does");
  expectRefused(std::string(100'000, '['), "it nests deeper");
  expectRefused(kWhole + std::string(kMostTopologyBytes, ' '), "it has more than 1 MiB");
  expectRefused(R"({"switches": [], "gpu": [], "gpus": []})", "the machine has the unknown field 'gpu'");
  expectRefused("{\"a\\u001b\": []}", "the unknown field 'a?'");
}

TEST(Topology, NamesTheFieldThatIsWrong) {
  const auto withGpu = [](const std::string& gpu) { return "{" + kSwitch + R"(, "gpus": [)" + gpu + "]}"; };
  const auto with = [](const std::string& rest) { return "{" + kSwitch + ", " + kGpus + ", " + rest + "}"; };
  expectRefused("{" + kSwitch + "}", "the machine has no field 'gpus'");
  expectRefused("{" + kSwitch + R"(, "gpus": []})", "gpus has no entry");
  expectRefused(R"({"switches": 3, "gpus": []})", "switches is no list");
  expectRefused(R"({"switches": [3], "gpus": []})", "switches[0] is no JSON object");
  expectRefused(devices(kMostDevices + 1), "switches has more than 64 entries");
  expectRefused(devices(1), "gpus[0].switch is 's0', which is no switch");
  expectRefused(R"({"switches": [{"uplink": 1}], "gpus": []})", "switches[0] has no field 'name'");
  expectRefused(R"({"switches": [{"name": "", "uplink": 1}], "gpus": []})", "switches[0].name is no name of 1 to 32");
  expectRefused(R"({"switches": [{"name": 7, "uplink": 1}], "gpus": []})", "switches[0].name is no name");
  expectRefused(R"({"switches": [{"name": "a b", "uplink": 1}], "gpus": []})", "switches[0].name is no name");
  expectRefused(R"({"switches": [{"name": "s"}], "gpus": []})", "switches[0] has no field 'uplink'");
  for (const std::string bad : {"0", "-1", "1e-9", "1e7", "\"10\"", "null", "[1]", "true"})
    expectRefused(R"({"switches": [{"name": "s", "uplink": )" + bad + R"(}], "gpus": []})",
                  "switches[0].uplink is no bandwidth from 0.001 to 1000000 GB/s");
  expectRefused(withGpu(R"({"name": "s0", "switch": "s0", "link": 1})"), "gpus[0].name is 's0', which another device");
  expectRefused(withGpu(R"({"name": "g", "link": 1})"), "gpus[0] has no field 'switch'");
  expectRefused(withGpu(R"({"name": "g", "switch": "s1", "link": 1})"), "gpus[0].switch is 's1', which is no switch");
  expectRefused(withGpu(R"({"name": "g", "switch": "s0", "link": 1, "links": 1})"), "gpus[0] has the unknown field");
  expectRefused(with(R"("nics": [{"name": "n", "switch": "g0"}])"), "nics[0].switch is 'g0', which is no switch");
  expectRefused(with(R"("nics": [{"name": "n", "link": 0}])"), "nics[0].link is no bandwidth");
  expectRefused(with(R"("memory": -1)"), "memory is no bandwidth");
  expectRefused(with(R"("nvlinks": [{"gpus": ["g0"], "link": 1}])"), "nvlinks[0].gpus is no list of 2 to 64");
  expectRefused(with(R"("nvlinks": [{"gpus": ["g0", "s0"], "link": 1}])"),
                "nvlinks[0].gpus[1] is 's0', which is no GPU");
  expectRefused(with(R"("nvlinks": [{"gpus": ["g0", 1], "link": 1}])"), "nvlinks[0].gpus[1] is no name");
  expectRefused(with(R"("nvlinks": [{"gpus": ["g0", "g0"], "link": 1}])"),
                "nvlinks[0].gpus[1] is 'g0', which is or has a link to 'g0'");
  expectRefused(with(R"("nvlinks": [{"gpus": ["g0", "g1"], "link": 1}, {"gpus": ["g1", "g0"], "link": 1}])"),
                "nvlinks[1].gpus[1] is 'g0', which is or has a link to 'g1'");
  expectRefused(with(R"("nvlinks": [{"gpus": ["g0", "g1"]}])"), "nvlinks[0] has no field 'link'");
}

TEST(Topology, IsReadOrRefusedWhateverTheBytes) {
  test::forSeeds(500, [](test::Random& random) {
    std::string text = kWhole;
    for (uint64_t changes = 1 + pick(random, 3); changes > 0; --changes)
      text[pick(random, text.size())] = static_cast<char>(pick(random, 256));
    if (pick(random, 3) == 0) text.resize(pick(random, text.size()));
    const Result<Topology> read = parseTopology(text);
    EXPECT_TRUE(read.ok() || read.status().code() == Code::kInvalidArgument) << text;
  });
}

}  // namespace
}  // namespace treadle::summation::topology_test

// The description of a machine: parsed values, and an error that names each mistake.

#include "treadle/cli/topology_file.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "treadle/core/base/error.h"

namespace treadle::cli::topology_file_test {
namespace {

using summation::Topology;
using test::contains;

const std::string kSwitch = R"("switches": [{"name": "s0", "uplink": 10}])";
const std::string kGpus =
    R"("gpus": [{"name": "g0", "switch": "s0", "link": 13.1}, {"name": "g1", "switch": "s0", "link": 8}])";
const std::string kWhole = "{" + kSwitch + ", " + kGpus + R"(, "nics": [{"name": "n0", "switch": "s0", "link": 12.5},
    {"name": "n1"}], "nvlinks": [{"gpus": ["g0", "g1"], "link": 25}], "memory": 60})";

TEST(TopologyFile, GivesTheMachine) {
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

TEST(TopologyFile, MayLeaveOutWhatAMachineLacks) {
  const Topology read = valueOrThrow(parseTopology("{" + kSwitch + ", " + kGpus + "}"));
  EXPECT_TRUE(read.nics.empty() && read.nvlinks.empty());
  EXPECT_EQ(Topology::kUnlimited, read.memory);
}

TEST(TopologyFile, LinksEachTwoGpusOfAnEntry) {
  const Topology read = valueOrThrow(parseTopology(
      "{" + kSwitch + R"(, "gpus": [{"name": "a", "switch": "s0", "link": 1}, {"name": "b", "switch": "s0", "link": 1},
      {"name": "c", "switch": "s0", "link": 1}], "nvlinks": [{"gpus": ["c", "a", "b"], "link": 2}]})"));
  ASSERT_EQ(3U, read.nvlinks.size());
  EXPECT_EQ(2U, read.nvlinks[0].first);
  EXPECT_EQ(1U, read.nvlinks[2].second);
}

// "{...}, {...}": so many entries, in each of which % is its number.
std::string entries(size_t count, const std::string& one) {
  std::string all;
  for (size_t i = 0; i < count; ++i) {
    all += (i == 0 ? "" : ", ") + one;
    all.replace(all.rfind('%'), 1, std::to_string(i));
  }
  return all;
}

std::string withSwitches(const std::string& list) { return R"({"switches": [)" + list + R"(], "gpus": []})"; }
std::string withGpus(const std::string& list) { return "{" + kSwitch + R"(, "gpus": [)" + list + "]}"; }
std::string with(const std::string& rest) { return "{" + kSwitch + ", " + kGpus + ", " + rest + "}"; }

void expectRefused(const std::string& text, const std::string& why) {
  const Result<Topology> read = parseTopology(text);
  ASSERT_FALSE(read.ok()) << text;
  EXPECT_EQ(Code::kInvalidArgument, read.status().code());
  EXPECT_TRUE(contains(read.status().message(), why)) << text;
}

TEST(TopologyFile, RefusesOtherText) {
  using namespace std::string_literals;
  expectRefused("", "it is empty");
  expectRefused("{", "it is not valid JSON, at line 1, column 2");
  expectRefused("{\n  \"memory\": 1\n  \"nics\"}", "it is not valid JSON, at line 3, column");
  expectRefused(kWhole + " x", "it is not valid JSON, at line 2, column ");
  expectRefused(kWhole + kWhole, "it is not valid JSON");
  expectRefused(kWhole + "\0"s, "it has a zero byte, at line 2, column ");
  expectRefused(kWhole + "\n\n\0garbage"s, "it has a zero byte, at line 4, column 1");
  expectRefused("{\"memory\": \"\xff\"}", "it is not valid JSON");
  expectRefused("[]", "the machine is not a JSON object");
  expectRefused(R"({"memory": 1e999})", "a number in it is too large");
  expectRefused(R"({"memory": NaN})", "it is not valid JSON");
  expectRefused(R"({"memory": 1, "memory": 2})", "it has the field 'memory' twice");
  expectRefused(withSwitches(R"({"name": "a", "name": "b"})"), "it has the field 'name' twice");
  expectRefused(std::string(500'000, '['), "it is not valid JSON, at line 1, column 500001");
  expectRefused(with("\"memory\": " + std::string(500'000, '[') + std::string(500'000, ']')), "memory is not a number");
  expectRefused(kWhole + std::string(kMostTopologyBytes, ' '), "it has more than 1 MiB");
  expectRefused(R"({"switches": [], "gpu": [], "gpus": []})", "the machine has the unknown field 'gpu'");
  expectRefused("{\"a\\u001b\": []}", "the unknown field 'a?'");
}

TEST(TopologyFile, NamesTheWrongField) {
  expectRefused("{" + kSwitch + "}", "the machine has no field 'gpus'");
  expectRefused(withGpus(""), "gpus has no entry");
  expectRefused(R"({"switches": 3, "gpus": []})", "switches is not a list");
  expectRefused(withSwitches("3"), "switches[0] is not a JSON object");
  expectRefused(withSwitches(R"({"uplink": 1})"), "switches[0] has no field 'name'");
  expectRefused(withSwitches(R"({"name": "s"})"), "switches[0] has no field 'uplink'");
  expectRefused(withGpus(R"({"name": "s0", "switch": "s0", "link": 1})"), "gpus[0].name is 's0', which another device");
  expectRefused(withGpus(R"({"name": "g", "link": 1})"), "gpus[0] has no field 'switch'");
  expectRefused(withGpus(R"({"name": "g", "switch": "s1", "link": 1})"),
                "gpus[0].switch is 's1', which is not a switch");
  expectRefused(withGpus(R"({"name": "g", "switch": "s0", "link": 1, "links": 1})"), "gpus[0] has the unknown field");
  expectRefused(with(R"("nics": [{"name": "n", "switch": "g0"}])"), "nics[0].switch is 'g0', which is not a switch");
}

TEST(TopologyFile, RefusesNamesThatAnOutputCannotShow) {
  for (const std::string bad : {"7", R"("")", R"("a b")", R"("a'b")", R"("a\"b")", R"("a\\b")", R"("\u00e9")"})
    expectRefused(withSwitches(R"({"name": )" + bad + R"(, "uplink": 1})"),
                  "switches[0].name is not a name of 1 to 32");
  for (const std::string reserved : {"cpu", "memory"}) {
    expectRefused(withSwitches(R"({"name": ")" + reserved + R"(", "uplink": 1})"),
                  "switches[0].name is '" + reserved + "', which is reserved");
    expectRefused(with(R"("nics": [{"name": ")" + reserved + R"("}])"), "which is reserved");
  }
  EXPECT_TRUE(parseTopology(with(R"("nics": [{"name": ")" + std::string(32, 'n') + R"("}])")).ok());
  expectRefused(with(R"("nics": [{"name": ")" + std::string(33, 'n') + R"("}])"), "nics[0].name is not a name");
}

TEST(TopologyFile, RefusesBandwidthsOutsideTheirRange) {
  for (const std::string bad : {"0", "-1", "0.0009", "1000001", "1e7"})
    expectRefused(withSwitches(R"({"name": "s", "uplink": )" + bad + "}"),
                  "switches[0].uplink is not a bandwidth from 0.001 to 1000000 GB/s");
  for (const std::string bad : {"null", "[1]", "true"})
    expectRefused(withSwitches(R"({"name": "s", "uplink": )" + bad + "}"), "switches[0].uplink is not a number");
  expectRefused(with(R"("memory": "10")"), R"(memory is not a number (write 10, not "10"))");
  expectRefused(with(R"("nics": [{"name": "n", "link": 0}])"), "nics[0].link is not a bandwidth");
  EXPECT_DOUBLE_EQ(1e6, valueOrThrow(parseTopology(with(R"("memory": 0.001)"))).memory);
  EXPECT_DOUBLE_EQ(1e15, valueOrThrow(parseTopology(with(R"("memory": 1000000)"))).memory);
}

TEST(TopologyFile, RefusesNvLinksThatAreNotBetweenTwoGpusOnce) {
  expectRefused(with(R"("nvlinks": [{"gpus": ["g0", "g1"]}])"), "nvlinks[0] has no field 'link'");
  expectRefused(with(R"("nvlinks": [{"gpus": ["g0"], "link": 1}])"), "nvlinks[0].gpus is not a list of 2 to 64");
  expectRefused(with(R"("nvlinks": [{"gpus": ["g0", "s0"], "link": 1}])"),
                "nvlinks[0].gpus[1] is 's0', which is not a GPU");
  expectRefused(with(R"("nvlinks": [{"gpus": ["g0", 1], "link": 1}])"), "nvlinks[0].gpus[1] is not a name");
  expectRefused(with(R"("nvlinks": [{"gpus": ["g0", "g0"], "link": 1}])"), "nvlinks[0] names the GPU 'g0' twice");
  expectRefused(with(R"("nvlinks": [{"gpus": ["g0", "g1"], "link": 1}, {"gpus": ["g1", "g0"], "link": 1}])"),
                "nvlinks[1]: 'g1' and 'g0' already have an NVLink in another entry; keep one");
}

TEST(TopologyFile, AllowsSixtyFourDevicesOfEachKind) {
  const std::string one = R"({"name": "d%", "uplink": 1})", gpu = R"({"name": "d%", "switch": "s0", "link": 1})";
  const std::string nic = R"({"name": "d%"})", allLinked = R"({"gpus": [)" + entries(64, "\"d%\"") + R"(], "link": 1})";
  expectRefused(withSwitches(entries(64, one)), "gpus has no entry");
  expectRefused(withSwitches(entries(65, one)), "switches has more than 64 entries");
  EXPECT_TRUE(parseTopology(withGpus(entries(64, gpu))).ok());
  expectRefused(withGpus(entries(65, gpu)), "gpus has more than 64 entries");
  EXPECT_TRUE(parseTopology(with(R"("nics": [)" + entries(64, nic) + "]")).ok());
  expectRefused(with(R"("nics": [)" + entries(65, nic) + "]"), "nics has more than 64 entries");
  expectRefused(with(R"("nvlinks": [{"gpus": [)" + entries(65, "\"d%\"") + R"(], "link": 1}])"),
                "is not a list of 2 to 64");
  expectRefused(with(R"("nvlinks": [)" + entries(2017, "%") + "]"), "nvlinks has more than 2016 entries");
  std::string whole = withGpus(entries(64, gpu));
  whole.insert(whole.size() - 1, R"(, "nvlinks": [)" + allLinked + "]");
  EXPECT_EQ(2016U, valueOrThrow(parseTopology(whole)).nvlinks.size());
}

}  // namespace
}  // namespace treadle::cli::topology_file_test

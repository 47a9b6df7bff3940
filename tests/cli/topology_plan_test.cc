// `treadle plan --machine`, as a user meets it.

#include "treadle/cli/topology_plan.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/launcher.h"
#include "tests/support/expect_error.h"
#include "treadle/core/base/error.h"

namespace treadle::cli::topology_plan_test {
namespace {

using test::contains;

// A description in a file that is gone at the end.
class MachineFile {
 public:
  explicit MachineFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() / ("treadle_machine_" + std::to_string(::getpid()) + ".json")) {
    std::ofstream(path_) << text;
  }
  ~MachineFile() { std::filesystem::remove(path_); }
  MachineFile(const MachineFile&) = delete;
  MachineFile& operator=(const MachineFile&) = delete;

  std::string path() const { return path_.string(); }

 private:
  const std::filesystem::path path_;
};

// Two switches with two GPUs each, and what `rest` adds.
std::string fourGpus(const std::string& rest = "") {
  return R"({"switches": [{"name": "left", "uplink": 10}, {"name": "right", "uplink": 10}], "gpus": [
      {"name": "g0", "switch": "left", "link": 16}, {"name": "g1", "switch": "left", "link": 16},
      {"name": "g2", "switch": "right", "link": 16}, {"name": "g3", "switch": "right", "link": 16}])" +
         rest + "}";
}

std::string outputOf(std::vector<std::string> options) {
  options.insert(options.begin(), "plan");
  Launcher launcher(options);
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  return launcher.out();
}

// l = 2, g = 2: a GPU's link carries 3/2 of the 80 MB, an uplink all of them; the ring 3/2 of them everywhere.
TEST(TopologyPlan, ShowsTheMachineAndWhatItsLinksCarry) {
  const MachineFile machine(fourGpus());
  const std::string text = outputOf({"--machine", machine.path(), "--bytes", "80000000"});
  for (const char* part :
       {"sum of 76.3 MiB from each of 4 GPUs\n", "cpu, memory: no limit given\n", "+-- left   switch  10.0 GB/s\n",
        "|   +-- g1     GPU     16.0 GB/s\n", "    +-- g3     GPU     16.0 GB/s\n",
        "-> cpu-assisted    8.00 ms     1.000     left - cpu\n",
        "   ring            12.00 ms    1.500     left - cpu\n",
        "cpu-assisted: it takes 33.3% less time than the ring\n", "   3. the CPU adds the parts of all switches\n",
        "   g0 - left         16.0 GB/s       114.4 MiB   114.4 MiB   7.50 ms     94%\n", "nothing ran on a GPU\n"})
    EXPECT_TRUE(contains(text, part));
}

TEST(TopologyPlan, ShowsNicsAndNotes) {
  const MachineFile machine(fourGpus(R"(, "nics": [{"name": "n0", "switch": "right", "link": 12.5}, {"name": "n1"}],
      "nvlinks": [{"gpus": ["g0", "g1"], "link": 25}])"));
  const std::string text = outputOf({"--machine", machine.path()});
  for (const char* part :
       {", over the network\n", "+-- n1     NIC     no limit given\n", "    +-- n0     NIC     12.5 GB/s\n",
        "1 NVLink between GPUs\n", "note: NVLinks do not connect all GPUs, so the rules for PCIe hold\n"})
    EXPECT_TRUE(contains(text, part));
}

TEST(TopologyPlan, PrintsTheSameAsJson) {
  const MachineFile machine(fourGpus(R"(, "nics": [{"name": "n0", "switch": "left", "link": 12.5}],
      "nvlinks": [{"gpus": ["g0", "g1", "g2", "g3"], "link": 25}], "memory": 50)"));
  const auto json = nlohmann::json::parse(outputOf({"--machine", machine.path(), "--bytes", "1000", "--json"}));
  EXPECT_EQ(1000, json["bytes"]);
  EXPECT_EQ("nvlink", json["chosen"]);
  ASSERT_EQ(4U, json["ways"].size());
  EXPECT_EQ("all GPUs reduce over NVLink to g2", json["ways"][0]["steps"][0]);
  const auto& uplink = json["ways"][0]["links"][4];
  EXPECT_EQ((std::vector<std::string>{"left", "cpu"}), uplink["ends"]);
  EXPECT_EQ(1000, uplink["bytes_there"]);
  EXPECT_EQ(10e9, uplink["bytes_per_second"]);
  EXPECT_DOUBLE_EQ(1e-7, uplink["seconds"]);
  EXPECT_EQ("nvlink, shared", json["ways"][1]["name"]);
  EXPECT_EQ(2000, json["ways"][1]["links"][4]["bytes_there"]);
}

TEST(TopologyPlan, OfOneGpuHasNoSteps) {
  const MachineFile machine(
      R"({"switches": [{"name": "s", "uplink": 1}], "gpus": [{"name": "g", "switch": "s", "link": 1}]})");
  const std::string text = outputOf({"--machine", machine.path()});
  EXPECT_TRUE(contains(text, "ring: one GPU has nothing to sum\n"));
  EXPECT_EQ(std::string::npos, text.find("nan")) << text;
}

TEST(TopologyPlan, RefusesWhatItCannotMean) {
  const MachineFile machine(fourGpus());
  const std::string folder = std::filesystem::temp_directory_path();
  const std::pair<std::vector<std::string>, std::string> kCases[] = {
      {{"--machine"}, "--machine"},
      {{"--machine", ""}, "--machine: it needs a FILE"},
      {{"--machine", "/nowhere"}, "--machine is '/nowhere': it cannot be read"},
      {{"--machine", folder}, "it cannot be read"},
      {{"--machine", "/dev/null"}, "--machine is '/dev/null': it is no valid JSON, from byte 1 on"},
      {{"--machine", "/dev/zero"}, "it has more than 1 MiB"},
      {{"--machine", machine.path(), "--bytes", "0"}, "--bytes is '0', not a number of bytes"},
      {{"--machine", machine.path(), "--bytes", "1125899906842625"}, "not a number of bytes"},
      {{"--machine", machine.path(), "--workers", "2"}, "--machine"},
      {{"--machine", machine.path(), "--model", "gpt2"}, "--machine"},
      {{"--machine", machine.path(), "--explain", folder}, "--machine"},
      {{"--machine", machine.path(), "--bandwidth", "2"}, "--machine"},
      {{"--machine", machine.path(), "--members", "2"}, "--machine"},
      {{"--machine", machine.path(), "--measure"}, "--machine"},
      {{"--machine", machine.path(), "--", "program"}, "it starts no program"},
  };
  for (auto [options, part] : kCases) {
    options.insert(options.begin(), "plan");
    Launcher launcher(options);
    EXPECT_EQ(2, launcher.finish()) << part;
    EXPECT_TRUE(contains(launcher.err(), part));
    EXPECT_TRUE(contains(launcher.err(), "treadle plan: "));
  }
}

// The example of the help must stay one that can be used.
TEST(TopologyPlan, TakesTheExampleOfItsHelp) {
  const std::string help = outputOf({"--help"});
  const size_t begin = help.find("{\"switches\""), end = help.find("60}", begin);
  ASSERT_NE(std::string::npos, end) << help;
  const auto read = summation::parseTopology(help.substr(begin, end + 3 - begin));
  ASSERT_TRUE(read.ok()) << read.status().toString();
  EXPECT_EQ(2U, read->gpus.size());
}

}  // namespace
}  // namespace treadle::cli::topology_plan_test

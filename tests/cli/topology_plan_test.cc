// `treadle plan --machine`, as a user meets it.

#include "treadle/cli/topology_plan.h"

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/launcher.h"
#include "tests/support/expect_error.h"
#include "treadle/cli/topology_file.h"
#include "treadle/core/base/error.h"

namespace treadle::cli::topology_plan_test {
namespace {

using test::contains;

// A description in a temporary file.
class MachineFile {
 public:
  explicit MachineFile(const std::string& text)
      : path_(std::filesystem::temp_directory_path() /
              ("treadle_machine_" + std::to_string(::getpid()) + "_" + std::to_string(++files) + ".json")) {
    std::ofstream(path_) << text;
  }
  ~MachineFile() { std::filesystem::remove(path_); }
  MachineFile(const MachineFile&) = delete;
  MachineFile& operator=(const MachineFile&) = delete;

  std::string path() const { return path_.string(); }

 private:
  inline static int files = 0;
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

// "{...}, {...}": switches s0, s1, ... or GPUs g0, g1, ..., each with its switch.
std::string listOf(size_t count, char kind) {
  std::string all;
  for (size_t i = 0; i < count; ++i) {
    const std::string number = std::to_string(i);
    all += (i == 0 ? "" : ", ") + ("{\"name\": \"" + std::string(1, kind)) + number +
           (kind == 's' ? R"(", "uplink": 10})" : R"(", "switch": "s)" + number + R"(", "link": 16})");
  }
  return all;
}

std::string firstLines(const std::string& text, const std::string& from, int count) {
  std::istringstream in(text.substr(std::min(text.find(from), text.size())));
  std::string lines;
  for (std::string line; count > 0 && std::getline(in, line); --count) lines += line + "\n";
  return lines;
}

// l = 2, g = 2: a GPU's link carries 3/2 of the 80 MB, an uplink all of them; in the ring each carries 3/2 of them.
TEST(TopologyPlan, ShowsTheMachineAndTheLoadsOfItsLinks) {
  const MachineFile machine(fourGpus());
  const std::string text = outputOf({"--machine", machine.path(), "--bytes", "80000000"});
  EXPECT_EQ(R"(sum of 76.3 MiB from each of 4 GPUs

cpu, memory: no limit given
+-- left   switch  10 GB/s
|   +-- g0     GPU     16 GB/s
|   +-- g1     GPU     16 GB/s
+-- right  switch  10 GB/s
    +-- g2     GPU     16 GB/s
    +-- g3     GPU     16 GB/s

   strategy        time        compared  busiest link
-> cpu-assisted    8.00 ms     1.000     left - cpu
   ring            12.00 ms    1.500     left - cpu

cpu-assisted: it takes 33.3% less time than the ring
)",
            firstLines(text, "sum of", 15));
  EXPECT_TRUE(contains(text, "   3. the CPU adds the parts of all switches\n"));
  EXPECT_TRUE(contains(text, R"(
   link              bandwidth       to CPU      from CPU    time        busy
   left - cpu        10 GB/s         76.3 MiB    76.3 MiB    8.00 ms     100%
   right - cpu       10 GB/s         76.3 MiB    76.3 MiB    8.00 ms     100%
   g0 - left         16 GB/s         114.4 MiB   114.4 MiB   7.50 ms     94%
)"));
  EXPECT_TRUE(contains(text, "   memory - cpu      no limit given  305.2 MiB   228.9 MiB   0.0 us      0%\n"));
  EXPECT_TRUE(contains(text, "nothing ran on a GPU.\n"));
}

TEST(TopologyPlan, ShowsNicsAndNotes) {
  const MachineFile machine(fourGpus(R"(, "nics": [{"name": "a_long_name", "switch": "right", "link": 0.0125},
      {"name": "n1"}], "nvlinks": [{"gpus": ["g0", "g1"], "link": 25}], "memory": 123456.5)"));
  const std::string text = outputOf({"--machine", machine.path()});
  for (const char* part : {"sum of 61.0 MiB from each of 4 GPUs, over the network\n", "cpu, memory: 123456.5 GB/s\n",
                           "\n+-- n1           NIC     no limit given\n", "\n+-- left         switch  10 GB/s\n",
                           "    +-- a_long_name  NIC     0.0125 GB/s\n", "1 NVLink between GPUs\n",
                           "note: NVLinks do not connect all GPUs, so the plan uses none of them\n"})
    EXPECT_TRUE(contains(text, part));
}

TEST(TopologyPlan, ShowsTheBusiestLinksOfALargeMachine) {
  const MachineFile machine("{\"switches\": [" + listOf(20, 's') + "], \"gpus\": [" + listOf(20, 'g') + "]}");
  const std::string text = outputOf({"--machine", machine.path()});
  EXPECT_EQ(std::string::npos, text.find("g0 - s0 ")) << text;
  EXPECT_TRUE(contains(text, "   and 25 less busy links\n")) << "of 20 GPUs, 20 switches and the memory";
}

TEST(TopologyPlan, PrintsTheSameAsJson) {
  const MachineFile machine(fourGpus(R"(, "nics": [{"name": "n0", "switch": "left", "link": 12.5}],
      "nvlinks": [{"gpus": ["g0", "g1", "g2", "g3"], "link": 25}], "memory": 50)"));
  const auto json = nlohmann::json::parse(outputOf({"--machine", machine.path(), "--bytes", "1000", "--json"}));
  EXPECT_EQ(1000, json["bytes"]);
  EXPECT_EQ("nvlink", json["chosen"]);
  ASSERT_EQ(3U, json["strategies"].size());
  const auto& chosen = json["strategies"][0];
  EXPECT_EQ("all GPUs reduce over NVLink to g2", chosen["steps"][0]);
  EXPECT_EQ(nlohmann::json({"left", "cpu"}), chosen["busiest"]);
  ASSERT_EQ(8U, chosen["links"].size()) << "three GPUs move nothing over PCIe, and three NVLinks carry nothing";
  const auto& uplink = chosen["links"][1];
  EXPECT_EQ(nlohmann::json({"left", "cpu"}), uplink["ends"]);
  EXPECT_EQ(1000, uplink["bytes_to_second"]);
  EXPECT_EQ(1000, uplink["bytes_to_first"]);
  EXPECT_EQ(10e9, uplink["bytes_per_second"]);
  EXPECT_DOUBLE_EQ(1e-7, uplink["seconds"]);
}

TEST(TopologyPlan, OfOneGpuHasNoSteps) {
  const MachineFile machine(
      R"({"switches": [{"name": "s", "uplink": 1}], "gpus": [{"name": "g", "switch": "s", "link": 1}]})");
  const std::string text = outputOf({"--machine", machine.path()});
  EXPECT_TRUE(contains(text, "-> ring            0.0 us      -         -\n"));
  EXPECT_TRUE(contains(text, "ring: one GPU has nothing to sum\n"));
  const auto json = nlohmann::json::parse(outputOf({"--machine", machine.path(), "--json"}));
  EXPECT_TRUE(json["strategies"][0]["busiest"].is_null());
  EXPECT_TRUE(json["strategies"][0]["links"].empty());
}

TEST(TopologyPlan, RefusesWrongUse) {
  const MachineFile machine(fourGpus());
  const std::string folder = std::filesystem::temp_directory_path();
  const std::pair<std::vector<std::string>, std::string> kCases[] = {
      {{"--machine"}, "--machine"},
      {{"--machine", ""}, "--machine: it needs a FILE"},
      {{"--machine", "/nowhere"}, "--machine is '/nowhere': it cannot be read: No such file or directory"},
      {{"--machine", folder}, "it cannot be read: Is a directory"},
      {{"--machine", "/dev/null"}, "--machine is '/dev/null': it is empty"},
      {{"--machine", "/dev/zero"}, "it has more than 1 MiB"},
      {{"--machine", machine.path(), "--bytes", "0"}, "--bytes is '0', not a whole number from 1 to 1099511627776"},
      {{"--machine", machine.path(), "--bytes", "1125899906842625"}, "not a whole number from 1 to"},
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

// Users copy the example of the help.
TEST(TopologyPlan, AcceptsTheExampleOfItsHelp) {
  const std::string help = outputOf({"--help"});
  const size_t begin = help.find("{\"switches\""), end = help.find("60}", begin);
  ASSERT_NE(std::string::npos, end) << help;
  const auto read = parseTopology(help.substr(begin, end + 3 - begin));
  ASSERT_TRUE(read.ok()) << read.status().toString();
  EXPECT_EQ(2U, read->gpus.size());
}

}  // namespace
}  // namespace treadle::cli::topology_plan_test

// `treadle plan --explain`: of a run, and of times by hand.

#include "treadle/cli/explanation.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/launcher.h"
#include "tests/support/expect_error.h"
#include "tests/support/places.h"
#include "treadle/core/base/error.h"

namespace treadle::cli::explanation_test {
namespace {

using summation::Bandwidths;
using test::contains;

// Empty, and gone at the end.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / ("treadle_times_" + std::to_string(::getpid()))) {
    std::filesystem::remove_all(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path() const { return path_.string(); }
  void put(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(path_);
    std::ofstream(path_ / name) << text;
  }

 private:
  const std::filesystem::path path_;
};

TEST(Explanation, SaysWhereTheTimeOfARunHasGone) {
  const Folder folder;
  Launcher run({"run", "-n", "2", "--servers", "1", "--", test::testProgram("cli_summing_program")},
               {{"TREADLE_RECORD", folder.path()}});
  ASSERT_EQ(0, run.finish()) << run.err();
  Launcher explain({"plan", "--explain", folder.path(), "--bandwidth", "10Gbit"});
  EXPECT_EQ(0, explain.finish()) << explain.err();
  for (const char* text :
       {"summation service '' of 2 workers with 1 server: 20 sums of 305.2 MiB in all\n", "   worker0 ", "   worker1 ",
        "   server2 (server) ", "least time by --bandwidth: 256.00 ms; the sums of worker"})
    EXPECT_TRUE(contains(explain.out(), text)) << explain.out();
  Launcher asJson({"plan", "--explain", folder.path(), "--json"});
  ASSERT_EQ(0, asJson.finish()) << asJson.err();
  const auto json = nlohmann::json::parse(asJson.out());
  ASSERT_EQ(1u, json.size());
  ASSERT_EQ(3u, json[0]["machines"].size());
  EXPECT_EQ("server", json[0]["machines"][2]["role"]);
  EXPECT_GT(json[0]["machines"][0]["moving_seconds"], 0);
  EXPECT_FALSE(json[0].contains("least_seconds"));
}

// What a run with other machines has left has another number; the same number and other machines are of no run.
TEST(Explanation, RefusesFilesOfSeveralRuns) {
  const Folder folder;
  SummationTimes times{.service = "sums", .number = 1, .worker = "a", .workers = {"a", "b"}};
  folder.put("1.summation.txt", textOf(times));
  times.worker = "b";
  folder.put("2.summation.txt", textOf(times));
  EXPECT_EQ(2u, valueOrThrow(readRuns(folder.path())).front().size());
  times.workers.emplace_back("c");
  folder.put("2.summation.txt", textOf(times));
  EXPECT_TRUE(contains(readRuns(folder.path()).status().message(), "record each run in a folder of its own"));
}

TEST(Explanation, RefusesFoldersWithoutTimes) {
  const Folder folder;
  const auto refusal = [&](std::vector<std::string> more, int code) {
    std::vector<std::string> arguments = {"plan", "--explain", folder.path()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    Launcher launcher(arguments);
    EXPECT_EQ(code, launcher.finish());
    return launcher.err();
  };
  EXPECT_TRUE(contains(refusal({}, 1), "cannot be read: No such file"));
  folder.put("other.txt", "nothing");
  EXPECT_TRUE(contains(refusal({}, 1), "has no times of summation services; a run with TREADLE_RECORD="));
  folder.put("1.w0.summation.txt", "nothing");
  EXPECT_TRUE(contains(refusal({}, 1), "1.w0.summation.txt: line 1 is none of the times of a summation service"));
  ASSERT_EQ(0, ::mkfifo((folder.path() + "/0.summation.txt").c_str(), 0600));  // in which nobody writes
  std::filesystem::remove(folder.path() + "/1.w0.summation.txt");
  EXPECT_TRUE(contains(refusal({}, 1), "0.summation.txt is no file"));
  for (const std::vector<std::string>& without :
       {std::vector<std::string>{"plan", "--explain"}, {"plan", "--explain", ""}}) {
    Launcher launcher(without);
    EXPECT_EQ(2, launcher.finish());
    EXPECT_TRUE(contains(launcher.err(), "--explain")) << launcher.err();
  }
  EXPECT_TRUE(contains(refusal({"--server-bandwidth", "1Gbit"}, 2), "and not --bandwidth"));
  EXPECT_TRUE(contains(refusal({"--workers", "3"}, 2), "leave --workers, --servers, --bytes, --model"));
}

// ---- times by hand: 3 workers and a server, for whose 800 MB the least time at 100 MB/s is 8 * 12 / 10 = 9.6 s

class ByHand : public ::testing::Test {
 protected:
  static SummationTimes times(const std::string& worker, int waiting, int moving, int computing) {
    const bool isServer = worker == "s";
    return {.service = "sums",
            .worker = worker,
            .workers = {"a", "b", "c"},
            .servers = {"s"},
            .sums = isServer ? 0U : 10U,
            .bytes = isServer ? 0U : 800'000'000U,
            .bytesSent = 960'000'000,
            .bytesReceived = 960'000'000,
            .waiting = std::chrono::seconds(waiting),
            .moving = std::chrono::seconds(moving),
            .computing = std::chrono::seconds(computing)};
  }
  static std::string explained(const ServiceRun& run) { return explanationTable(run, Bandwidths::even(3, 1, 100e6)); }
};

TEST_F(ByHand, NamesTheWorkerThatTheOthersWaitFor) {
  const std::string text =
      explained({times("a", 10, 10, 0), times("b", 11, 10, 0), times("c", 0, 10, 0), times("s", 0, 0, 0)});
  EXPECT_TRUE(contains(text, "waiting: c begins its sums later than the others, which wait for it")) << text;
  EXPECT_TRUE(contains(text, "least time by --bandwidth: 9.60 s; the sums of b took 21.00 s, 2.19 times as long"))
      << text;
  EXPECT_TRUE(contains(text, "moving and computing took 1.04 times the least time, so the network is at its limit"))
      << text;
  EXPECT_TRUE(
      contains(text, "   a                   20.00 s    10.00 s    50%   10.00 s    50%   0.0 us     0%    96.0 MB/s"))
      << text;
}

TEST_F(ByHand, SaysThatTheNetworkCarriedLess) {
  const std::string text = explained({times("a", 0, 20, 1), times("b", 0, 20, 1), times("c", 1, 20, 1)});
  EXPECT_TRUE(contains(text, "moving and computing took 2.19 times the least time: the network carried less")) << text;
  EXPECT_FALSE(contains(text, "waiting: ")) << text;
}

TEST_F(ByHand, BlamesNobodyWhereAllWaitOrNotAllAreKnown) {
  const std::string nobody = "waiting: workers are late in turns";
  EXPECT_TRUE(contains(explained({times("a", 10, 10, 0), times("b", 11, 10, 0), times("c", 9, 10, 0)}), nobody));
  EXPECT_TRUE(contains(explained({times("a", 10, 10, 0), times("b", 0, 10, 0)}), nobody));
}

TEST_F(ByHand, SaysThatTheNetworkCarriesMoreThanItWasTold) {
  EXPECT_TRUE(contains(explained({times("a", 0, 1, 0)}), "the network carries more than --bandwidth says"));
}

TEST_F(ByHand, ShowsAllServicesAsJsonWhateverTheirNames) {
  SummationTimes strange = times("a", 1, 2, 3);
  strange.service = "\xff";
  const auto json = nlohmann::json::parse(
      explanationJson({{times("a", 1, 2, 3)}, {strange}}, {Bandwidths::even(3, 1, 100e6), std::nullopt}));
  ASSERT_EQ(2u, json.size());
  EXPECT_DOUBLE_EQ(9.6, json[0]["least_seconds"]);
  EXPECT_EQ(3, json[0]["machines"][0]["computing_seconds"]);
  EXPECT_FALSE(json[1].contains("least_seconds"));
}

TEST_F(ByHand, SaysThatItComputed) {
  EXPECT_TRUE(contains(explained({times("a", 0, 6, 4)}), "computing: the thread of a packs, adds"));
}

TEST_F(ByHand, HasNoBoundWithoutBandwidthsOrOfAnAsynchronousService) {
  ServiceRun run = {times("a", 0, 10, 0)};
  EXPECT_TRUE(contains(explanationTable(run, {}), "--bandwidth (and --server-bandwidth) compares this"));
  EXPECT_FALSE(contains(explanationTable(run, {}), "least time by --bandwidth"));
  run.front().isAsynchronous = true;
  EXPECT_FALSE(contains(explained(run), "least time by --bandwidth"));
}

TEST_F(ByHand, MayHaveSummedNothing) {
  SummationTimes none = times("a", 0, 0, 0);
  none.sums = none.bytes = 0;
  const std::string text = explained({none, times("s", 0, 0, 0)});
  EXPECT_TRUE(contains(text, "no worker has summed anything")) << text;
  EXPECT_FALSE(contains(text, "nan") || contains(text, "inf")) << text;
  EXPECT_TRUE(contains(explained({times("s", 0, 0, 0)}), "the times of its workers are not here"));
}

}  // namespace
}  // namespace treadle::cli::explanation_test

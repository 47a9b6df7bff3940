// `treadle bench` as a user meets it: it prints each row and ends, alone and in a job, and refuses what it cannot mean.

#include <nlohmann/json.hpp>

#include "tests/cli/launcher.h"
#include "tests/support/gate.h"
#include "tests/support/places.h"

namespace treadle::cli::bench_test {
namespace {

using namespace std::chrono_literals;
using Strings = std::vector<std::string>;

const std::string kTreadle = test::treadleCommand();
const Strings kQuick = {"bench", "--sizes", "1", "--repetitions", "2"};

Strings with(Strings words, const Strings& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

void expectHas(const std::string& text, const std::string& part) {
  EXPECT_NE(std::string::npos, text.find(part)) << "no '" << part << "' in:\n" << text;
}

TEST(Bench, printsEachRowAndEnds) {
  Launcher launcher(kQuick);
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  for (const char* part : {"processor ", "kernel ", "large values over shared memory", "empty call ", " x  ",
                           "64 bytes over unix: ", "calls in flight ", "1 MiB and back ", "memcpy: ", "unix stream: "})
    expectHas(launcher.out(), part);
  EXPECT_EQ("", launcher.err()) << "progress is for terminals";
}

TEST(Bench, measuresTheChannelsThatItIsTold) {
  Launcher launcher(with(kQuick, {"--channels", "tcp"}));
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  expectHas(launcher.out(), "messages over tcp, large values over tcp");
  expectHas(launcher.out(), "64 bytes over tcp: ");
  expectHas(launcher.out(), "tcp stream: ");
}

TEST(Bench, runsBetweenTwoWorkersOfAJob) {
  Launcher launcher(with({"run", "-n", "3", "--", kTreadle}, kQuick));
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  expectHas(launcher.out(), "[0] 1 MiB and back ");
  EXPECT_EQ(std::string::npos, launcher.out().find("[1]"));
}

TEST(Bench, tellsTheSameAsJson) {
  Launcher launcher(with(kQuick, {"--json"}));
  EXPECT_EQ(0, launcher.finish()) << launcher.err();
  auto json = nlohmann::json::parse(launcher.out());
  ASSERT_EQ(3u, json["figures"].size());
  EXPECT_EQ("empty call", json["figures"][0]["name"]);
  EXPECT_EQ(200, json["figures"][0]["ours"]["count"]);
  EXPECT_EQ(2, json["figures"][2]["ours"]["count"]);
  EXPECT_GT(json["figures"][2]["limits"][0]["ratio"], 0.0);
  EXPECT_EQ("us", json["unit"]);
}

TEST(Bench, endsAtItsTimeLimitAndSaysSo) {
  // The two workers must meet and begin within the limit.
  EXPECT_TRUE(test::withLongerLimits(4s, [](Duration limit) {
    Launcher launcher({"bench", "--sizes", "1", "--repetitions", "1000000", "--timeout", std::to_string(limit / 1s)});
    const int code = launcher.finish();
    EXPECT_TRUE(code == 0 || code == 1) << launcher.err();
    const bool well = code == 0;
    if (well) expectHas(launcher.out(), "ended early: the time was up; --timeout gives more");
    return well ? ::testing::AssertionSuccess() : ::testing::AssertionFailure() << launcher.err();
  }));
}

TEST(Bench, saysThatTheOtherWorkerIsLost) {
  Launcher launcher({"run", "-n", "2", "--grace", "60", "--", "/bin/sh", "-c",
                     "[ $RANK = 1 ] && exit 3; exec '" + kTreadle + "' bench --timeout 3600"});
  EXPECT_EQ(3, launcher.finish());
  expectHas(launcher.err(), "treadle bench: rank 1 ended with exit code 3 before all had joined");
}

TEST(Bench, answersWrongUsageInOneSentence) {
  struct Wrong {
    Strings arguments;
    std::string told;
  };
  for (const Wrong& wrong : {Wrong{{"--sizes", "big"}, "--sizes is 'big', not numbers of MiB"},
                             Wrong{{"--sizes", "1,"}, "--sizes is '1,', not numbers of MiB"},
                             Wrong{{"--repetitions", "-1"}, "--repetitions is '-1', not a number"},
                             Wrong{{"--timeout", "0"}, "--timeout is '0', not a number of seconds"},
                             Wrong{{"--channels", "wifi"}, "--channels: 'wifi' is no channel"}}) {
    Launcher launcher(with({"bench"}, wrong.arguments));
    EXPECT_EQ(2, launcher.finish());
    expectHas(launcher.err(), "treadle bench: " + wrong.told);
  }
}

TEST(Treadle, helpsWithEachCommand) {
  Launcher all({"--help"});
  EXPECT_EQ(0, all.finish());
  for (const char* name : {"run", "doctor", "bench"}) {
    expectHas(all.out(), name);
    Launcher one({name, "--help"});
    EXPECT_EQ(0, one.finish());
    expectHas(one.out(), "Examples:");
  }
}

}  // namespace
}  // namespace treadle::cli::bench_test

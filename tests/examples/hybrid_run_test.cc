// What surrounds the training in hybrid_digits: command line, metrics, progress.

#include <gtest/gtest.h>

#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "examples/hybrid_digits/options.h"
#include "examples/hybrid_digits/progress.h"

namespace hybrid {
namespace {

const EpochMetrics kEpoch{2, "trainer1", 0.5, 0.875, 900.5, 1.25};

std::optional<int> parse(std::vector<std::string> arguments, Options& options) {
  arguments.insert(arguments.begin(), "hybrid_digits");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  return parseOptions(static_cast<int>(argv.size()), argv.data(), options);
}

TEST(Options, DefaultsAreTheJobOfTheBenchmark) {
  Options options;
  EXPECT_EQ(parse({}, options), std::nullopt);
  EXPECT_EQ(options.training.epochs, 10);
  EXPECT_EQ(options.training.batchSize, 32);
  EXPECT_EQ(options.training.learningRate, 0.05);
  EXPECT_EQ(options.training.seed, 0);
  EXPECT_FALSE(options.single);
  EXPECT_TRUE(std::filesystem::exists(options.dataPath)) << options.dataPath;
}

TEST(Options, AreRead) {
  Options options;
  EXPECT_EQ(parse({"--single", "--epochs", "3", "--batch=718", "--lr", "1e-3", "--seed", "7", "--data", "d",
                   "--run-folder", "r"},
                  options),
            std::nullopt);
  EXPECT_TRUE(options.single);
  EXPECT_EQ(options.training.epochs, 3);
  EXPECT_EQ(options.training.batchSize, 718);
  EXPECT_EQ(options.training.learningRate, 1e-3);
  EXPECT_EQ(options.training.seed, 7);
  EXPECT_EQ(options.dataPath, "d");
  EXPECT_EQ(options.runFolder, "r");
}

TEST(Options, WrongOnesAreOneLineAndExitCode2) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--epochs", "0"}, {"--epochs", "x"}, {"--epochs", "10001"}, {"--batch", "0"}, {"--batch", "719"},
      {"--lr", "0"},     {"--lr", "-1"},    {"--lr", "nan"},       {"--lr", "inf"},  {"--lr", "x"},
      {"--seed", "-1"},  {"--seed"},        {"--unknown"},         {"extra"},
  };
  for (const std::vector<std::string>& arguments : wrong) {
    Options options;
    testing::internal::CaptureStderr();
    std::optional<int> exitCode = parse(arguments, options);
    std::string told = testing::internal::GetCapturedStderr();
    EXPECT_EQ(exitCode, 2) << arguments[0];
    EXPECT_EQ(told.find("hybrid_digits: "), 0u) << told;
    EXPECT_EQ(told.find('\n'), told.size() - 1) << told;
    EXPECT_NE(told.find(arguments[0]), std::string::npos) << told;
  }
}

TEST(Metrics, AreOneJsonObjectALine) {
  EXPECT_EQ(jsonOf(kEpoch),
            R"({"epoch":2,"trainer":"trainer1","loss":0.5,"accuracy":0.875,"steps_per_s":900.5,"seconds":1.25})");
  const std::string line = jsonOf({3, "trainer0", std::numeric_limits<double>::quiet_NaN(), 1, 2, 3});
  EXPECT_TRUE(nlohmann::json::parse(line)["loss"].is_null()) << line;
}

TEST(Progress, IsAPlainLinePerEpochWithoutATerminal) {
  std::ostringstream out;
  {
    Progress progress(out, Progress::Style::kLines, 10, 22);
    progress.step(2, 1, 0.7);
    progress.epochDone(kEpoch);
  }
  EXPECT_EQ(out.str(), "epoch  2/10  loss 0.500  accuracy 0.875  900 steps/s\n");
}

TEST(Progress, IsOneBarThatFitsOnATerminal) {
  std::ostringstream out;
  {
    Progress progress(out, Progress::Style::kBar, 10000, 22);
    progress.step(1, 1, 1234.5678);
    progress.epochDone({1, "trainer0", 1234.5678, 0.1, 123456.7, 1});
    progress.epochDone({10000, "trainer0", 0.001, 1, 9, 2});
  }
  std::string text = out.str();
  EXPECT_EQ(text.find('\n'), text.size() - 1) << "the line ends with the object";
  std::istringstream draws(text.substr(1, text.size() - 2));
  std::string draw;
  std::vector<size_t> widths;
  while (std::getline(draws, draw, '\r')) widths.push_back(draw.size());
  ASSERT_EQ(widths.size(), 3u);
  EXPECT_LE(widths[1], 75u) << "with room for a launcher's prefix";
  EXPECT_EQ(widths[1], widths[2]) << "a shorter bar wipes the longer one before it";
  EXPECT_NE(text.find("=] loss 0.001  accuracy 1.000  9 steps/s"), std::string::npos) << text;
}

}  // namespace
}  // namespace hybrid

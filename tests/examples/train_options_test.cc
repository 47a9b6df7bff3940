// The command line that the programs with replicas share: what is read, and one line for what is wrong.

#include "examples/common/train_options.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "examples/common/command_line.h"
#include "examples/common/transformer_options.h"

namespace example {
namespace {

struct Parsed {
  TrainOptions training{.steps = 100, .batch = 16, .learningRate = 0.5};
  TransformerOptions model;
  std::optional<int> exitCode;
};

Parsed parseAll(std::vector<std::string> arguments) {
  Parsed parsed;
  CLI::App app("Trains.", "program");
  addOptions(app, parsed.training);
  addOptions(app, parsed.model);
  arguments.insert(arguments.begin(), "program");
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  parsed.exitCode = parse(app, static_cast<int>(argv.size()), argv.data());
  return parsed;
}

TEST(TrainOptions, AreRead) {
  const Parsed parsed = parseAll({"--steps", "3", "--batch=4", "--lr", "1e-3", "--seed", "7", "--layers", "2",
                                  "--width", "30", "--heads", "5", "--length", "9"});
  EXPECT_EQ(parsed.exitCode, std::nullopt);
  EXPECT_EQ(parsed.training.steps, 3);
  EXPECT_EQ(parsed.training.batch, 4);
  EXPECT_EQ(parsed.training.learningRate, 1e-3);
  EXPECT_EQ(parsed.training.seed, 7u);
  EXPECT_EQ(parsed.model.layers, 2);
  EXPECT_EQ(parsed.model.width, 30);
  EXPECT_EQ(parsed.model.heads, 5);
  EXPECT_EQ(parsed.model.length, 9);
}

TEST(TrainOptions, HelpGoesToStandardOutputWithExitCode0) {
  testing::internal::CaptureStdout();
  const Parsed parsed = parseAll({"--help"});
  const std::string shown = testing::internal::GetCapturedStdout();
  EXPECT_EQ(parsed.exitCode, 0);
  EXPECT_NE(shown.find("--steps"), std::string::npos) << shown;
}

TEST(TrainOptions, WrongOnesAreOneLineAndExitCode2) {
  const std::vector<std::vector<std::string>> wrong = {
      {"--steps", "1"}, {"--steps", "x"},  {"--batch", "0"}, {"--lr", "0"},     {"--lr", "-1"},
      {"--lr", "nan"},  {"--lr", "inf"},   {"--lr", "x"},    {"--layers", "0"}, {"--width", "30"},
      {"--heads", "3"}, {"--length", "0"}, {"--seed"},       {"--unknown"},     {"extra"},
  };
  for (const std::vector<std::string>& arguments : wrong) {
    testing::internal::CaptureStderr();
    const std::optional<int> exitCode = parseAll(arguments).exitCode;
    const std::string line = testing::internal::GetCapturedStderr();
    EXPECT_EQ(exitCode, 2) << arguments[0];
    EXPECT_TRUE(line.starts_with("program: ")) << line;
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    EXPECT_NE(line.find(arguments[0]), std::string::npos) << line;
  }
}

TEST(TrainOptions, AWidthThatHeadsDoNotDivideNamesBoth) {
  testing::internal::CaptureStderr();
  EXPECT_EQ(parseAll({"--heads", "3"}).exitCode, 2);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "program: --width: 256 is not a multiple of --heads 3 (program --help lists the options)\n");
}

}  // namespace
}  // namespace example

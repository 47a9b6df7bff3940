// The folder of a run, its metrics and the command that draws them.

#include "examples/common/run_folder.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <stdexcept>

#include "examples/common/metrics_file.h"
#include "examples/common/plot_command.h"
#include "tests/examples/temp_folder.h"

namespace example {
namespace {

// The message of the error that `call` throws.
template <class F>
std::string messageOf(F call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "no error";
}

TEST(RunFolder, HoldsOneRun) {
  TempFolder temp;
  const std::string path = temp / "new/one";
  RunFolder folder = RunFolder::make("program", path);
  EXPECT_TRUE(std::filesystem::is_directory(folder.path()));
  MetricsFile metrics(folder.metricsPath());
  EXPECT_EQ(messageOf([&] { RunFolder::make("program", path); }), "no error") << "no line was written yet";
  metrics.write("{}");
  EXPECT_EQ(messageOf([&] { RunFolder::make("program", path); }),
            path + ": this folder already holds a run (metrics.jsonl); name another with --run-folder");
}

TEST(RunFolder, NamesTheOptionWhenItCannotBeMade) {
  TempFolder temp;
  writeFile(temp / "file", "");
  EXPECT_EQ(messageOf([&] { RunFolder::make("program", temp / "file/below"); }),
            (temp / "file/below") + ": the run folder cannot be made: Not a directory; name another with --run-folder");
  const std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(temp.path());
  writeFile("runs", "");
  const std::string dated = messageOf([&] { RunFolder::make("program", ""); });
  std::filesystem::current_path(before);
  EXPECT_TRUE(dated.starts_with("runs: the run folder cannot be made: ")) << dated;
  EXPECT_TRUE(dated.ends_with("; name another with --run-folder")) << dated;
}

TEST(RunFolder, DatedOnesNeverCollide) {
  TempFolder temp;
  std::filesystem::path before = std::filesystem::current_path();
  std::filesystem::current_path(temp.path());
  RunFolder first = RunFolder::make("program", ""), second = RunFolder::make("program", "");
  EXPECT_NE(first.path(), second.path());
  EXPECT_EQ(first.path().find("runs/program-20"), 0u) << first.path();
  EXPECT_TRUE(std::filesystem::is_directory(second.path()));
  std::filesystem::current_path(before);
}

TEST(MetricsFile, HasTheLinesOfAllItsWriters) {
  TempFolder temp;
  MetricsFile first(temp / "m"), second(temp / "m");
  first.write("one");
  second.write("two");
  first.write("three");
  EXPECT_EQ(readFile(temp / "m"), "one\ntwo\nthree\n");
  EXPECT_EQ(
      messageOf([&] { MetricsFile(temp / "missing/m"); }),
      (temp / "missing/m") + ": cannot be written: No such file or directory; name another folder with --run-folder");
}

TEST(PlotCommand, QuotesItsPaths) {
  TempFolder temp;
  const RunFolder folder = RunFolder::make("program", temp / "a run");
  const std::string command = plotCommand(folder, "a title");
  EXPECT_TRUE(command.ends_with("plot_metrics.py\" \"" + folder.path() + "/metrics.jsonl\" \"" + folder.path() +
                                "/metrics.png\" \"a title\""))
      << command;
}

}  // namespace
}  // namespace example

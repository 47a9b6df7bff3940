// The first program of the guide does what the guide says, under `treadle run` and alone.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "tests/support/places.h"

namespace {

const std::string kProgram = "'" + treadle::test::testProgram("guide_first_program") + "'";

struct Ended {
  int exitCode = -1;
  std::string output;  // standard error too
};

Ended shell(const std::string& command) {
  std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(("exec 2>&1; " + command).c_str(), "r"), [](FILE*) { return 0; });
  if (!pipe) throw std::runtime_error("no shell");
  Ended ended;
  std::array<char, 4096> some{};
  while (size_t size = std::fread(some.data(), 1, some.size(), pipe.get())) ended.output.append(some.data(), size);
  int status = ::pclose(pipe.get());
  ended.exitCode = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return ended;
}

TEST(FirstProgram, PrintsTheSum) {
  Ended ended = shell("timeout 60 '" + treadle::test::treadleCommand() + "' run -n 2 -- " + kProgram);
  EXPECT_EQ(ended.exitCode, 0) << ended.output;
  EXPECT_EQ(ended.output, "[0] the sum is 12\n");
}

TEST(FirstProgram, NamesWhatIsMissingWithoutALauncher) {
  Ended ended = shell("env -u TREADLE_RANK -u RANK -u WORLD_SIZE timeout 60 " + kProgram);
  EXPECT_EQ(ended.exitCode, 1);
  EXPECT_NE(ended.output.find("treadle run"), std::string::npos) << ended.output;
}

}  // namespace

// The `safetensors` package of Python as the oracle for what we write and read; the work is in interop.py.

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/places.h"
#include "tests/train/checkpoint/temp_folder.h"

namespace treadle::safetensors::interop_test {
namespace {

// The Python that has torch and safetensors: the one the build was set up with.
std::string python() {
  if (const char* named = std::getenv("TREADLE_PYTHON"); named != nullptr && *named != '\0') return named;
  std::string inTree = test::sourcePath(".venv/bin/python");
  return std::filesystem::exists(inTree) ? inTree : "python3";
}

TEST(Interop, PythonReadsWhatWeWriteAndWeReadWhatPythonWrites) {
  TempFolder folder;
  std::string command = "\"" + python() + "\" \"" + test::sourcePath("tests/train/checkpoint/interop.py") + "\" \"" +
                        test::testProgram("train_checkpoint_interop_program") + "\" \"" + folder.path() + "\" 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  std::string output;
  for (int next = std::fgetc(pipe); next != EOF; next = std::fgetc(pipe)) output.push_back(static_cast<char>(next));
  int status = pclose(pipe);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << command << "\n" << output;
  EXPECT_NE(output.find("interop: ok"), std::string::npos) << output;
}

}  // namespace
}  // namespace treadle::safetensors::interop_test

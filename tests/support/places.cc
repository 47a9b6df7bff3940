#include "tests/support/places.h"

namespace treadle::test {

std::string treadleCommand() { return TREADLE_TEST_BIN_DIR "/treadle"; }

std::string testProgram(const std::string& name) { return TREADLE_TEST_PROGRAM_DIR "/" + name; }

std::string sourcePath(const std::string& path) { return TREADLE_SOURCE_DIR "/" + path; }

}  // namespace treadle::test

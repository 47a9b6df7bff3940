#pragma once
// Where tests find the programs that they start and the files that they read. Only places.cc is compiled with paths of
// this checkout: every other object file is the same in all of them, so one compiler cache serves them all.

#include <string>

namespace treadle::test {

// The `treadle` command of this build.
std::string treadleCommand();
// A program that the tests of a folder start: "core_worker_peer_program".
std::string testProgram(const std::string& name);
// A file or folder of the source tree: "examples/data/digits.csv".
std::string sourcePath(const std::string& path);

}  // namespace treadle::test

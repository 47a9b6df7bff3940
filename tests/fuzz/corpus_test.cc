// Every fuzzer over its seeds and its corpus (tests/fuzz/corpus/NAME): what broke a reader once is among them.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/fuzzer.h"
#include "tests/support/places.h"
#include "treadle/core/base/log.h"

namespace treadle::fuzz::corpus_test {
namespace {

constexpr size_t kMostBytes = 4096;  // of a file: what is longer belongs into no repository

class FuzzCorpus : public ::testing::TestWithParam<const Fuzzer*> {
 protected:
  static void SetUpTestSuite() { setLogLevel(LogLevel::kOff); }  // of what is refused, which is most
};

std::filesystem::path folderOf(const Fuzzer& fuzzer) {
  return std::filesystem::path(test::sourcePath("tests/fuzz/corpus")) / fuzzer.name();
}

std::vector<std::byte> contentsOf(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return bytesOf(std::string(std::istreambuf_iterator<char>(file), {}));
}

TEST_P(FuzzCorpus, breaksNoPromise) {
  for (const auto& seed : GetParam()->seeds()) EXPECT_NO_THROW(GetParam()->feed(seed));
  size_t files = 0;
  for (const auto& file : std::filesystem::directory_iterator(folderOf(*GetParam()))) {
    SCOPED_TRACE(file.path());
    std::vector<std::byte> input = contentsOf(file.path());
    EXPECT_LE(input.size(), kMostBytes);
    EXPECT_NO_THROW(GetParam()->feed(input));
    ++files;
  }
  EXPECT_GE(files, 5U) << "the corpus is not there";
}

INSTANTIATE_TEST_SUITE_P(All, FuzzCorpus, ::testing::ValuesIn(Fuzzer::all()),
                         [](const auto& fuzzer) { return fuzzer.param->name(); });

}  // namespace
}  // namespace treadle::fuzz::corpus_test

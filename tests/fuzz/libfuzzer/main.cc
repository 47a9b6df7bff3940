// What libFuzzer calls: the one fuzzer of this program. `--seeds=FOLDER` writes its seeds there and ends.

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/base/hash.h"
#include "treadle/core/base/log.h"

namespace {

constexpr std::string_view kSeeds = "--seeds=";

void writeSeeds(const std::string& folder) {
  for (const auto& seed : treadle::fuzz::Fuzzer::all().front()->seeds()) {
    std::string_view text(reinterpret_cast<const char*>(seed.data()), seed.size());
    char name[17];
    std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(treadle::base::fnv1a(text)));
    std::ofstream(folder + "/" + name, std::ios::binary) << text;
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int* count, char*** arguments) {
  treadle::setLogLevel(treadle::LogLevel::kOff);
  for (int i = 1; i < *count; ++i)
    if (std::string_view argument((*arguments)[i]); argument.starts_with(kSeeds)) {
      writeSeeds(std::string(argument.substr(kSeeds.size())));
      std::exit(0);
    }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  treadle::fuzz::Fuzzer::all().front()->feed(std::as_bytes(std::span(data, size)));
  return 0;
}

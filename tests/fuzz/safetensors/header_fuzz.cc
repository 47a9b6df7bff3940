// libFuzzer target: the reader of safetensors headers over any bytes. The first byte is the size of the data
// behind the header, the rest is the header. Besides not crashing, a header that is accepted must tile its
// data.
//
//   clang++-19 -std=c++20 -g -O1 -fsanitize=fuzzer,address,undefined -I.
//   tests/fuzz/safetensors/header_fuzz.cc
//     treadle/train/checkpoint/header.cc treadle/train/checkpoint/header_parser.cc
//     treadle/core/base/status.cc treadle/core/base/check.cc -o header_fuzz && ./header_fuzz
//     -max_total_time=60 tests/fuzz/safetensors/corpus
//
// The corpus also runs as a unit test (tests/train/checkpoint/header_test.cc).

#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "treadle/train/checkpoint/header.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  uint64_t dataBytes = data[0];
  std::string_view json(reinterpret_cast<const char*>(data) + 1, size - 1);
  treadle::Result<treadle::checkpoint::Header> header = treadle::checkpoint::parseHeader(json, dataBytes);
  if (!header.ok()) return 0;
  uint64_t covered = 0;
  for (const auto& tensor : header->tensors) {
    if (tensor.begin != covered || tensor.end < tensor.begin) std::abort();
    covered = tensor.end;
  }
  if (covered != dataBytes) std::abort();
  // What was read can be written, and says the same again.
  treadle::Result<std::string> text = treadle::checkpoint::formatHeader(*header);
  if (!text.ok() || !treadle::checkpoint::parseHeader(text->substr(8), dataBytes).ok()) std::abort();
  return 0;
}

#include "tests/fuzz/fuzzer.h"

namespace treadle::fuzz {
namespace {

std::vector<const Fuzzer*>& known() {
  static std::vector<const Fuzzer*> fuzzers;
  return fuzzers;
}

}  // namespace

Fuzzer::Fuzzer(std::string name, Feed feed, Seeds seeds) : name_(std::move(name)), feed_(feed), seeds_(seeds) {
  known().push_back(this);
}

const std::vector<const Fuzzer*>& Fuzzer::all() { return known(); }

std::vector<std::byte> bytesOf(std::string_view text) {
  Bytes bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> row(std::initializer_list<int> numbers) {
  std::vector<std::byte> bytes;
  for (int number : numbers) bytes.push_back(static_cast<std::byte>(number));
  return bytes;
}

std::vector<std::byte> joined(const Inputs& pieces) {
  std::vector<std::byte> all;
  for (const auto& piece : pieces) all.insert(all.end(), piece.begin(), piece.end());
  return all;
}

}  // namespace treadle::fuzz

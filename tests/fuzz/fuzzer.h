#pragma once
// A fuzzer feeds a reader with any bytes and checks what the reader promises for all of them. Each NAME_fuzz.cc defines
// one and is compiled twice: as a program of libFuzzer's by clang (scripts/fuzz.sh), and into the unit test fuzz_test,
// which feeds it with the files of corpus/NAME and with its seeds. Those that need torch are in tensor/, and in
// tensor_fuzz_test. One thread.

#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "treadle/core/base/buffer.h"

namespace treadle::fuzz {

using Bytes = treadle::Bytes;
using Inputs = std::vector<std::vector<std::byte>>;

class Fuzzer {
 public:
  // Both are called with nothing else running. `feed` throws BrokenPromise; `seeds` are made by real encoders and show
  // the fuzzer what well-formed inputs look like.
  using Feed = void (*)(Bytes input);
  using Seeds = Inputs (*)();

  // For a constant of the file: known from then on by its name, which is that of the file.
  Fuzzer(std::string name, Feed feed, Seeds seeds);
  Fuzzer(const Fuzzer&) = delete;
  Fuzzer& operator=(const Fuzzer&) = delete;

  const std::string& name() const { return name_; }
  void feed(Bytes input) const { feed_(input); }
  Inputs seeds() const { return seeds_(); }

  // All of this program: one in a program of libFuzzer's.
  static const std::vector<const Fuzzer*>& all();

 private:
  const std::string name_;
  const Feed feed_;
  const Seeds seeds_;
};

struct BrokenPromise : std::logic_error {
  using std::logic_error::logic_error;
};

inline void promise(bool held, const char* what) {
  if (!held) throw BrokenPromise(what);
}

// An input as a row of choices. At its end numbers are 0 and texts are empty, so that every input is one.
class Choices {
 public:
  explicit Choices(Bytes input) : rest_(input) {}

  bool any() const { return !rest_.empty(); }
  // At most so many of the bytes that are left.
  Bytes bytes(size_t most) {
    Bytes taken = rest_.first(std::min(most, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  Bytes rest() { return bytes(rest_.size()); }
  template <class T>
  T number() {
    T value{};
    Bytes taken = bytes(sizeof value);
    if (!taken.empty()) std::memcpy(&value, taken.data(), taken.size());
    return value;
  }
  // In [0, below), of one byte; `below` is at most 256.
  size_t below(size_t below) { return number<uint8_t>() % below; }
  std::string text(size_t most) {
    Bytes taken = bytes(most);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

 private:
  Bytes rest_;
};

// The bytes of `text`; of the numbers, a byte each; and of several pieces one after the other.
std::vector<std::byte> bytesOf(std::string_view text);
std::vector<std::byte> row(std::initializer_list<int> numbers);
std::vector<std::byte> joined(const Inputs& pieces);

}  // namespace treadle::fuzz

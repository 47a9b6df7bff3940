#pragma once
// Puts values into bytes: little-endian numbers of fixed width without padding, strings with a 32-bit length in front.
// Reader (reader.h) is its mirror. Nothing that is written here is bounded but by memory; whoever sends it checks it
// against the frame's limits. One thread at a time.

#include <bit>
#include <concepts>
#include <cstring>
#include <string_view>
#include <vector>

#include "treadle/core/base/buffer.h"

namespace treadle::wire {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and so must the host be");

class Writer {
 public:
  template <class T>
    requires(std::integral<T> || std::floating_point<T>)
  void number(T value) {
    raw(std::as_bytes(std::span(&value, 1)));
  }
  void string(std::string_view text);  // at most 4 GiB - 1 bytes
  void raw(Bytes bytes) {
    if (bytes.empty()) return;
    size_t end = bytes_.size();
    bytes_.resize(end + bytes.size());
    std::memcpy(bytes_.data() + end, bytes.data(), bytes.size());
  }

  void reserve(size_t sizeBytes) { bytes_.reserve(sizeBytes); }
  size_t size() const { return bytes_.size(); }
  Bytes bytes() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

  // Overwrites a number written earlier at `offset`: for lengths known only afterwards.
  template <std::integral T>
  void patch(size_t offset, T value) {
    std::memcpy(bytes_.data() + offset, &value, sizeof value);
  }

 private:
  std::vector<std::byte> bytes_;
};

}  // namespace treadle::wire

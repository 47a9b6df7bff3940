#pragma once
// Puts values into bytes: little-endian numbers of fixed width without padding, strings with a 32-bit length in front.
// Reader (reader.h) is its mirror. Nothing that is written here is bounded but by memory; whoever sends it checks it
// against the frame's limits. One thread at a time.

#include <algorithm>
#include <bit>
#include <concepts>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/spare_bytes.h"

namespace treadle::wire {

static_assert(std::endian::native == std::endian::little, "the wire is little-endian and so must the host be");

class Writer {
 public:
  // A message's memory and that of the frame around it, used again so that small ones cost no allocation. Little, as
  // what is queued may keep so much for a few bytes.
  using Spare = base::SpareBytes<Writer, 2, 512>;

  Writer() = default;
  ~Writer() { Spare::keep(std::move(bytes_)); }
  Writer(Writer&&) = default;
  Writer& operator=(Writer&&) = default;

  template <class T>
    requires(std::integral<T> || std::floating_point<T>)
  void number(T value) {
    raw(std::as_bytes(std::span(&value, 1)));
  }
  void string(std::string_view text);  // at most 4 GiB - 1 bytes
  void raw(Bytes bytes) {
    if (bytes.empty()) return;
    if (bytes_.size() - size_ < bytes.size()) reserve(std::max(2 * size_, size_ + bytes.size()));
    std::memcpy(bytes_.data() + size_, bytes.data(), bytes.size());
    size_ += bytes.size();
  }

  void reserve(size_t sizeBytes) {
    if (bytes_.capacity() == 0) bytes_ = Spare::take();
    bytes_.resize(std::max(bytes_.size(), sizeBytes));
  }
  size_t size() const { return size_; }
  Bytes bytes() const { return Bytes(bytes_).first(size_); }
  std::vector<std::byte> take() {
    bytes_.resize(std::exchange(size_, 0));
    return std::move(bytes_);
  }

  // Overwrites a number written earlier at `offset`: for lengths known only afterwards.
  template <std::integral T>
  void patch(size_t offset, T value) {
    std::memcpy(bytes_.data() + offset, &value, sizeof value);
  }

 private:
  std::vector<std::byte> bytes_;  // and room for more: to make a vector longer costs more than most values
  size_t size_ = 0;
};

}  // namespace treadle::wire

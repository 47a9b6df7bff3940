#pragma once
// Takes values out of bytes that nobody vouches for. Every read is bounded by what is left; the first one that does
// not fit makes the reader bad for good, and it and all later ones yield zeros and empty strings. So a parser reads
// all its fields and asks `status()` once. One thread at a time; the bytes must outlive the reader.

#include <concepts>
#include <cstring>
#include <string>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/status.h"

namespace treadle::wire {

class Reader {
 public:
  explicit Reader(Bytes bytes) : rest_(bytes) {}

  // As it lies in memory, little-endian; any alignment; any bit pattern is a number.
  template <class T>
    requires(std::integral<T> || std::floating_point<T>)
  T number() {
    T value{};
    Bytes bytes = raw(sizeof value);
    if (bytes.size() == sizeof value) std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  bool boolean();  // any byte but 0 and 1 makes the reader bad
  // A 32-bit length and so many bytes, of any content; a length above the limit makes the reader bad.
  std::string string(size_t limitBytes);

  // `sizeBytes` bytes, or none when there are not so many left.
  Bytes raw(size_t sizeBytes) {
    if (!ok_ || sizeBytes > rest_.size()) {
      fail();
      return {};
    }
    Bytes bytes = rest_.first(sizeBytes);
    rest_ = rest_.subspan(sizeBytes);
    return bytes;
  }

  // How many elements follow, each of at least `elementBytes` (1 or more) bytes: bounded by what is left, so that a
  // container may reserve that many.
  size_t count(size_t elementBytes);

  size_t left() const { return rest_.size(); }
  bool ok() const { return ok_; }
  void fail() { ok_ = false, rest_ = {}; }

  // DataLoss naming `what` when a read did not fit.
  Status status(std::string_view what) const;
  // Also when bytes are left over.
  Status finished(std::string_view what) const;

 private:
  Bytes rest_;
  bool ok_ = true;
};

}  // namespace treadle::wire

#pragma once
// Bytes that travel as a tensor's do: beside the values of a message, by whatever way large buffers take.

#include <cstring>

#include "tests/support/bytes.h"
#include "treadle/core/rpc/codec.h"

namespace treadle {

namespace test {

struct Bulk {
  Buffer buffer = allocateBuffer(size_t{1} << 20);
};

inline Bulk bulkOf(size_t size, unsigned value) {
  Bulk bulk{allocateBuffer(size)};
  std::memset(bulk.buffer.data, static_cast<int>(value), size);
  return bulk;
}

// The sum of the bytes, or -1 when they are not all the same.
inline int64_t sumOf(const Bulk& bulk) {
  Bytes bytes = bulk.buffer.bytes();
  if (bytes.empty()) return 0;
  if (!allBytesAre(bytes, static_cast<int>(bytes[0]))) return -1;
  return static_cast<int64_t>(bytes.size()) * static_cast<int64_t>(bytes[0]);
}

}  // namespace test

template <>
struct rpc::Codec<test::Bulk> {
  // Something of it lies among the values, as those of a tensor do: lists count on that.
  static void encode(Encoder& encoder, const test::Bulk& bulk) {
    encoder.writer().number(uint8_t{1});
    encoder.addBuffer(bulk.buffer);
  }
  static test::Bulk decode(Decoder& decoder) {
    decoder.reader().number<uint8_t>();
    return {decoder.takeBuffer()};
  }
  static std::string name() { return "Bulk"; }
};

}  // namespace treadle

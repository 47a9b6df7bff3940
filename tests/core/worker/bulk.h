#pragma once
// Bytes that travel as a tensor's do: beside the values of a message, by whatever way large buffers take.

#include "treadle/core/rpc/codec.h"

namespace treadle {

namespace test {

struct Bulk {
  Buffer buffer = allocateBuffer(size_t{1} << 20);
};

}  // namespace test

template <>
struct rpc::Codec<test::Bulk> {
  static void encode(Encoder& encoder, const test::Bulk& bulk) { encoder.addBuffer(bulk.buffer); }
  static test::Bulk decode(Decoder& decoder) { return {decoder.takeBuffer()}; }
  static std::string name() { return "Bulk"; }
};

}  // namespace treadle

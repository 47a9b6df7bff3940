#pragma once
// Plain bytes as a value of a call: they travel as a tensor's do, beside the message, by whichever way a large buffer
// takes. Plain value; copies share the bytes.

#include "treadle/core/base/buffer.h"
#include "treadle/core/rpc/codec.h"

namespace treadle::cli {

struct Blob {
  Buffer buffer;
};

}  // namespace treadle::cli

namespace treadle::rpc {

template <>
struct Codec<cli::Blob> {
  static void encode(Encoder& encoder, const cli::Blob& blob) {
    Buffer buffer = blob.buffer;
    buffer.given = encoder.giving() && buffer.owner != nullptr && buffer.owner.use_count() == 2;  // the blob's and ours
    encoder.addBuffer(std::move(buffer));
  }
  static cli::Blob decode(Decoder& decoder) { return {decoder.takeBuffer()}; }
  static std::string name() { return "treadle.cli.Blob"; }
};
template <>
inline constexpr bool kOwnsAll<cli::Blob> = true;

}  // namespace treadle::rpc

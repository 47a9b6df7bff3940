#pragma once
// Bytes that travel beside the payload, as a tensor's do: through shared memory, another process's memory, lanes or
// inline, whichever the two workers have. What they hold follows from a seed, so that any worker can tell whether they
// are right. A plain value; copies share the memory, which nobody writes to once it is filled.

#include <cstring>

#include "treadle/core/rpc/codec.h"

namespace treadle::soak {

using Number = uint64_t;

// A step of splitmix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014) over both.
inline Number mix(Number a, Number b) {
  Number x = (a ^ (b + 0x9E3779B97F4A7C15U + (a << 6U) + (a >> 2U))) + 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30U)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27U)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31U);
}

struct Blob {
  Buffer buffer = {};

  // Word i is mix(seed, i); what is left of a word at the end is its first bytes.
  static Blob of(Number seed, size_t sizeBytes) { return in(allocateBuffer(sizeBytes), seed); }
  // The same in memory that is there.
  static Blob in(Buffer buffer, Number seed) {
    const size_t sizeBytes = buffer.sizeBytes;
    Blob blob{std::move(buffer)};
    for (size_t at = 0; at < sizeBytes; at += sizeof(Number)) {
      const Number word = mix(seed, at / sizeof(Number));
      std::memcpy(blob.buffer.data + at, &word, std::min(sizeof word, sizeBytes - at));
    }
    return blob;
  }
  // The place of the first byte that is not what `of` makes; the size when all are.
  size_t firstWrong(Number seed) const {
    for (size_t at = 0; at < buffer.sizeBytes; at += sizeof(Number)) {
      const Number word = mix(seed, at / sizeof(Number));
      if (std::memcmp(buffer.data + at, &word, std::min(sizeof word, buffer.sizeBytes - at)) != 0) return at;
    }
    return buffer.sizeBytes;
  }
};

}  // namespace treadle::soak

template <>
struct treadle::rpc::Codec<treadle::soak::Blob> {
  static void encode(Encoder& encoder, const soak::Blob& blob) {
    Buffer buffer = blob.buffer;
    // Two: the blob that is given away, and the copy above.
    buffer.given = encoder.giving() && buffer.owner.use_count() == 2;
    encoder.addBuffer(std::move(buffer));
  }
  static soak::Blob decode(Decoder& decoder) { return {decoder.takeBuffer()}; }
  static std::string name() { return "soak::Blob"; }
};
template <>
inline constexpr bool treadle::rpc::kOwnsAll<treadle::soak::Blob> = true;

#pragma once
// How the float32 numbers of a tensor travel in another form (Compression): in chunks of 64 bytes, each with the same
// count of numbers, so that no piece cuts one. Pure functions over memory; any thread.
//
//   float16, bfloat16   32 numbers
//   one bit             480 numbers: the mean of those below zero and of the others as bfloat16, and 480 bits, from the
//                       lowest of the first byte on; 1 stands for the second mean
//   top-k               16 to 32,768 numbers: 16 places as u16, and 16 values as bfloat16. An entry whose place is not
//                       in the chunk stands for nothing; of entries with the same place the values add up.
//
// What the last chunk has too much means nothing.

#include <cstdint>
#include <optional>
#include <span>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/status.h"
#include "treadle/core/group/data_type.h"
#include "treadle/core/summation/compression.h"

namespace treadle::summation {

inline constexpr uint64_t kChunkBytes = 64;

// Of a tensor.
struct Packing {
  using Form = Compression::Form;

  Form form = Form::kNone;
  uint32_t chunkElements = 0;  // numbers in a chunk; 0: the tensor travels as it is, and has no elements here
  uint64_t elements = 0;       // numbers in the tensor

  // `compression` is valid.
  static Packing of(const Compression& compression, uint64_t elements);

  bool isPacked() const { return form != Form::kNone; }
  // The type as which its bytes are summed, without being unpacked.
  std::optional<group::DataType> summedAs() const;
  // Or else they are unpacked, added and packed again; a machine keeps what that loses, and adds it to the next sum. So
  // the sum of the same data is not the same on another machine.
  bool hasKeptSums() const { return isPacked() && !summedAs(); }
  uint64_t chunks() const { return elements / chunkElements + (elements % chunkElements > 0 ? 1 : 0); }
  uint64_t bytes() const { return chunks() * kChunkBytes; }  // that travel
  // Numbers of the tensor in that chunk, and in those bytes, which cut no chunk.
  uint64_t elementsOf(uint64_t chunk) const { return elementsIn(chunk * kChunkBytes, (chunk + 1) * kChunkBytes); }
  uint64_t elementsIn(uint64_t begin, uint64_t end) const;

  // InvalidArgument: no form, or another count of numbers in a chunk than the form has.
  Status check() const;
  bool operator==(const Packing&) const = default;
};

// Packs values + kept, the numbers of a chunk and what was kept of them before. `values` becomes what is to be kept
// now: values + kept - unpacked. A number that is not finite, or becomes so, makes numbers of the chunk that are not
// (of one bit all with the same mean); of these what was kept before stays.
void pack(const Packing& packing, std::span<float> values, std::span<const float> kept,
          std::span<std::byte, kChunkBytes> chunk);
// values += unpacked.
void addUnpacked(const Packing& packing, std::span<const std::byte, kChunkBytes> chunk, std::span<float> values);

// The sum of the same chunk of several workers and of what earlier sums have lost, packed into `result`, which may be
// one of the addends. `kept`, of the numbers of the chunk, becomes what this sum has lost.
void addPacked(const Packing& packing, std::span<const std::byte* const> addends, std::span<float> kept,
               std::byte* result);

}  // namespace treadle::summation

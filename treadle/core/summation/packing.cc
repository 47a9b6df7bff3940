// Budget: for a number of each addend one addition, in the first cache but for chunks of more than some 4,000 numbers;
// no allocation, no lock.

#include "treadle/core/summation/packing.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <numeric>

#include "treadle/core/group/half.h"

namespace treadle::summation {
namespace {

using Form = Compression::Form;
using group::BFloat16;
using group::Float16;
using Chunk = std::span<std::byte, kChunkBytes>;
using ConstChunk = std::span<const std::byte, kChunkBytes>;

constexpr uint32_t kHalves = 32, kBits = 480, kEntries = 16, kMostElements = 32'768;
constexpr uint16_t kNowhere = 0xffff;  // the place of an entry that is not used

// Numbers of 16 bits in a chunk, from a place among them on.
uint16_t numberAt(ConstChunk chunk, size_t place) {
  uint16_t number = 0;
  std::memcpy(&number, chunk.data() + 2 * place, sizeof number);
  return number;
}

void setNumber(Chunk chunk, size_t place, uint16_t number) {
  std::memcpy(chunk.data() + 2 * place, &number, sizeof number);
}

float bfloat16At(ConstChunk chunk, size_t place) { return group::toFloat(BFloat16{numberAt(chunk, place)}); }

template <class Half>
void packHalves(std::span<float> values, Chunk chunk) {
  std::ranges::fill(chunk, std::byte{0});
  for (size_t i = 0; i < values.size(); ++i) {
    const auto half = group::toHalf<Half>(values[i]);
    setNumber(chunk, i, half.bits);
    values[i] -= group::toFloat(half);
  }
}

template <class Half>
void addHalves(ConstChunk chunk, std::span<float> values) {
  for (size_t i = 0; i < values.size(); ++i) values[i] += group::toFloat(Half{numberAt(chunk, i)});
}

// ---- one bit

constexpr size_t kBitsAt = 4, kLanes = 8;  // behind the means; numbers of a byte
constexpr std::array<uint32_t, kLanes> kBitOf = {1, 2, 4, 8, 16, 32, 64, 128};

// Of a chunk, the last one with zeros: loops of a count that the compiler knows become vectors.
using Numbers = std::array<float, kBits>;

struct Means {
  float below = 0, other = 0;
};

Means meansAt(ConstChunk chunk) { return {bfloat16At(chunk, 0), bfloat16At(chunk, 1)}; }

// All bits, or none: a branch would be guessed wrong half of the time.
uint32_t maskBelow(float number) { return number < 0 ? UINT32_MAX : 0; }

// Of the first `count` numbers. In double, so that no sum of them overflows.
Means meansOf(const Numbers& numbers, size_t count) {
  std::array<double, kLanes> below{}, other{};
  std::array<uint32_t, kLanes> isBelow{};
  for (size_t at = 0; at < numbers.size(); at += kLanes) {
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t mask = maskBelow(numbers[at + lane]), bits = std::bit_cast<uint32_t>(numbers[at + lane]);
      below[lane] += std::bit_cast<float>(bits & mask);
      other[lane] += std::bit_cast<float>(bits & ~mask);
      isBelow[lane] += mask & 1U;
    }
  }
  const auto meanOf = [](const std::array<double, kLanes>& sums, size_t of) {
    const double sum = std::accumulate(sums.begin(), sums.end(), 0.0);
    return of == 0 ? 0.0F : static_cast<float>(sum / static_cast<double>(of));
  };
  const size_t countBelow = std::accumulate(isBelow.begin(), isBelow.end(), size_t{0});
  return {meanOf(below, countBelow), meanOf(other, count - countBelow)};
}

Numbers unpackedBits(ConstChunk chunk) {
  const Means means = meansAt(chunk);
  const auto below = std::bit_cast<uint32_t>(means.below), other = std::bit_cast<uint32_t>(means.other);
  Numbers numbers;
  for (size_t at = 0; at < numbers.size(); at += kLanes) {
    const auto bits = std::to_integer<uint32_t>(chunk[kBitsAt + at / kLanes]);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const uint32_t mask = (bits & kBitOf[lane]) != 0 ? UINT32_MAX : 0;
      numbers[at + lane] = std::bit_cast<float>((mask & other) | (~mask & below));
    }
  }
  return numbers;
}

void packBits(std::span<float> values, Chunk chunk) {
  Numbers numbers{};
  std::ranges::copy(values, numbers.begin());
  const Means exact = meansOf(numbers, values.size());
  setNumber(chunk, 0, group::toHalf<BFloat16>(exact.below).bits);
  setNumber(chunk, 1, group::toHalf<BFloat16>(exact.other).bits);
  for (size_t at = 0; at < numbers.size(); at += kLanes) {
    uint32_t bits = 0;
    for (size_t lane = 0; lane < kLanes; ++lane) bits |= kBitOf[lane] & ~maskBelow(numbers[at + lane]);
    chunk[kBitsAt + at / kLanes] = static_cast<std::byte>(bits);
  }
  const Numbers sent = unpackedBits(chunk);
  for (size_t i = 0; i < values.size(); ++i) values[i] -= sent[i];
}

void addBits(ConstChunk chunk, std::span<float> values) {
  const Numbers numbers = unpackedBits(chunk);
  for (size_t i = 0; i < values.size(); ++i) values[i] += numbers[i];
}

// ---- top-k

// The bits of a float without its sign are in the order of its size; infinities and what is no number come last.
uint32_t sizeOfFloat(float value) { return std::bit_cast<uint32_t>(value) & 0x7fff'ffff; }

struct Largest {
  std::array<uint16_t, kEntries> places{};
  uint32_t count = 0;
};

// Up to 16 numbers that are not zero; of equal ones the first. Most numbers cost one comparison.
Largest largestOf(std::span<const float> values) {
  Largest found;
  uint32_t least = 0, leastEntry = 0;  // once there are 16
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t size = sizeOfFloat(values[i]);
    if (size <= least) continue;
    if (found.count < kEntries) {
      found.places[found.count++] = static_cast<uint16_t>(i);
    } else {
      found.places[leastEntry] = static_cast<uint16_t>(i);
    }
    if (found.count < kEntries) continue;
    least = UINT32_MAX;
    for (uint32_t entry = 0; entry < kEntries; ++entry) {
      const uint32_t other = sizeOfFloat(values[found.places[entry]]);
      const bool isLater = other == least && found.places[entry] > found.places[leastEntry];
      if (other < least || isLater) {
        least = other;
        leastEntry = entry;
      }
    }
  }
  return found;
}

void packLargest(std::span<float> values, Chunk chunk) {
  const Largest largest = largestOf(values);
  for (uint32_t entry = 0; entry < kEntries; ++entry) {
    if (entry >= largest.count) {
      setNumber(chunk, entry, kNowhere);
      setNumber(chunk, kEntries + entry, 0);
      continue;
    }
    float& value = values[largest.places[entry]];
    setNumber(chunk, entry, largest.places[entry]);
    setNumber(chunk, kEntries + entry, group::toHalf<BFloat16>(value).bits);
    value -= bfloat16At(chunk, kEntries + entry);
  }
}

void addLargest(ConstChunk chunk, std::span<float> values) {
  for (uint32_t entry = 0; entry < kEntries; ++entry) {
    const uint16_t place = numberAt(chunk, entry);
    if (place < values.size()) values[place] += bfloat16At(chunk, kEntries + entry);
  }
}

uint32_t chunkElementsOf(const Compression& compression) {
  switch (compression.form) {
    case Form::kNone: return 0;
    case Form::kFloat16:
    case Form::kBFloat16: return kHalves;
    case Form::kOneBit: return kBits;
    case Form::kTopK: return static_cast<uint32_t>(std::lround(kEntries / compression.fraction));
  }
  return 0;
}

}  // namespace

Packing Packing::of(const Compression& compression, uint64_t elements) {
  if (compression.form == Form::kNone) return {};
  return {compression.form, chunkElementsOf(compression), elements};
}

std::optional<group::DataType> Packing::summedAs() const {
  if (form == Form::kFloat16) return group::DataType::kFloat16;
  if (form == Form::kBFloat16) return group::DataType::kBFloat16;
  return {};
}

uint64_t Packing::elementsIn(uint64_t begin, uint64_t end) const {
  const uint64_t first = begin / kChunkBytes * chunkElements;
  return std::min((end - begin) / kChunkBytes * chunkElements, elements - first);
}

Status Packing::check() const {
  bool isRight = false;
  switch (form) {
    case Form::kNone: isRight = chunkElements == 0 && elements == 0; break;
    case Form::kFloat16:
    case Form::kBFloat16: isRight = chunkElements == kHalves; break;
    case Form::kOneBit: isRight = chunkElements == kBits; break;
    case Form::kTopK: isRight = chunkElements >= kEntries && chunkElements <= kMostElements; break;
  }
  return isRight ? Status() : invalidArgument("a tensor is packed in a form that is none");
}

void pack(const Packing& packing, std::span<float> values, std::span<const float> kept, Chunk chunk) {
  for (size_t i = 0; i < values.size(); ++i) values[i] += kept[i];
  switch (packing.form) {
    case Form::kFloat16: packHalves<Float16>(values, chunk); break;
    case Form::kBFloat16: packHalves<BFloat16>(values, chunk); break;
    case Form::kOneBit: packBits(values, chunk); break;
    case Form::kTopK: packLargest(values, chunk); break;
    case Form::kNone: break;
  }
  for (size_t i = 0; i < values.size(); ++i)
    if (!std::isfinite(values[i])) values[i] = kept[i];
}

void addUnpacked(const Packing& packing, ConstChunk chunk, std::span<float> values) {
  switch (packing.form) {
    case Form::kFloat16: return addHalves<Float16>(chunk, values);
    case Form::kBFloat16: return addHalves<BFloat16>(chunk, values);
    case Form::kOneBit: return addBits(chunk, values);
    case Form::kTopK: return addLargest(chunk, values);
    case Form::kNone: break;
  }
}

void addPacked(const Packing& packing, std::span<const std::byte* const> addends, std::span<float> kept,
               std::byte* result) {
  std::array<float, kMostElements> sums;  // of which as many are touched as the chunk has
  const std::span<float> values = std::span(sums).first(kept.size());
  std::ranges::fill(values, 0.0F);
  for (const std::byte* addend : addends) addUnpacked(packing, ConstChunk(addend, kChunkBytes), values);
  pack(packing, values, kept, Chunk(result, kChunkBytes));
  std::ranges::copy(values, kept.begin());
}

}  // namespace treadle::summation

// Packed chunks as a hostile machine may send them: adding any of them touches no memory but that of its numbers, and
// leaves no number that would stay.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/summation/packing.h"

namespace treadle::fuzz::summation_packing_fuzz {
namespace {

using summation::Compression;
using summation::kChunkBytes;
using summation::Packing;
using Chunk = std::array<std::byte, kChunkBytes>;

constexpr uint8_t kForms = 5;
constexpr float kUntouched = 12345.0F;

Packing drawnPacking(Choices& choices) {
  Packing packing;
  packing.form = static_cast<Compression::Form>(choices.below(kForms));
  packing.chunkElements = choices.number<uint16_t>();
  packing.elements = choices.number<uint16_t>();
  return packing;
}

// The numbers of a chunk, with some behind them that nobody may touch.
class Numbers {
 public:
  Numbers(uint64_t count, float value) : all_(count + kBehind, kUntouched), count_(count) {
    std::fill_n(all_.begin(), count, value);
  }
  std::span<float> values() { return std::span(all_).first(count_); }
  bool areAlone() const {
    return std::all_of(all_.begin() + static_cast<std::ptrdiff_t>(count_), all_.end(),
                       [](float value) { return value == kUntouched; });
  }

 private:
  static constexpr size_t kBehind = 65'536;
  std::vector<float> all_;
  size_t count_;
};

void feed(Bytes input) {
  Choices choices(input);
  const Packing packing = drawnPacking(choices);
  if (!packing.isPacked() || !packing.check().ok() || packing.elements == 0) return;
  const uint64_t chunk = choices.number<uint16_t>() % packing.chunks();
  std::vector<Chunk> chunks(1 + choices.below(3), Chunk{});
  for (Chunk& one : chunks) {
    const Bytes bytes = choices.bytes(one.size());
    std::copy(bytes.begin(), bytes.end(), one.begin());
  }
  std::vector<const std::byte*> addends;
  for (const Chunk& one : chunks) addends.push_back(one.data());
  Numbers numbers(packing.elementsOf(chunk), 0);
  addUnpacked(packing, chunks.front(), numbers.values());
  promise(numbers.areAlone(), "a chunk has its own numbers only");
  Numbers kept(packing.elementsOf(chunk), choices.number<int16_t>());
  addPacked(packing, addends, kept.values(), chunks.front().data());
  promise(kept.areAlone(), "a sum keeps its own numbers only");
  promise(std::ranges::all_of(kept.values(), [](float value) { return std::isfinite(value); }),
          "nothing is kept that is not finite");
}

Inputs seeds() {
  Inputs all;
  for (const Compression& compression : {Compression::float16(), Compression::bfloat16(), Compression::oneBit(),
                                         Compression::topK(0.01), Compression::topK(1.0 / 2048)}) {
    const Packing packing = Packing::of(compression, 1000);
    std::vector<float> values(packing.elementsOf(packing.chunks() - 1));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 7) - 3;
    Chunk chunk{};
    pack(packing, values, std::vector<float>(values.size()), chunk);
    std::vector<std::byte> head(8);
    head[0] = static_cast<std::byte>(packing.form);
    const auto perChunk = static_cast<uint16_t>(packing.chunkElements), elements = uint16_t{1000};
    std::memcpy(head.data() + 1, &perChunk, sizeof perChunk);
    std::memcpy(head.data() + 3, &elements, sizeof elements);
    head[7] = std::byte{1};
    all.push_back(joined({head, {chunk.begin(), chunk.end()}, {chunk.begin(), chunk.end()}}));
  }
  return all;
}

const Fuzzer kSummationPacking("summation_packing", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::summation_packing_fuzz

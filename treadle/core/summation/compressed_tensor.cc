// Budget: a few passes over a chunk in the first cache, for each pass over the data; no allocation, no lock.

#include "treadle/core/summation/compressed_tensor.h"

#include <algorithm>

namespace treadle::summation {
namespace {

std::span<std::byte, kChunkBytes> chunkAt(std::vector<std::byte>& packed, uint64_t chunk) {
  return std::span<std::byte, kChunkBytes>(packed.data() + chunk * kChunkBytes, kChunkBytes);
}

}  // namespace

CompressedTensor::CompressedTensor(const Packing& packing)
    : packing_(packing), packed_(packing.bytes()), kept_(packing.elements) {}

std::span<float> CompressedTensor::dataOf(uint64_t chunk) const {
  return data_.subspan(chunk * packing_.chunkElements, packing_.elementsOf(chunk));
}

std::span<float> CompressedTensor::keptOf(uint64_t chunk) {
  return std::span(kept_).subspan(chunk * packing_.chunkElements, packing_.elementsOf(chunk));
}

MutableBytes CompressedTensor::pack(MutableBytes data) {
  data_ = {reinterpret_cast<float*>(data.data()), data.size() / sizeof(float)};
  for (uint64_t chunk = 0; chunk < packing_.chunks(); ++chunk) {
    const std::span<float> values = dataOf(chunk), kept = keptOf(chunk);
    summation::pack(packing_, values, kept, chunkAt(packed_, chunk));
  }
  return packed_;
}

void CompressedTensor::unpack() {
  std::ranges::copy(data_, kept_.begin());
  std::ranges::fill(data_, 0.0F);
  for (uint64_t chunk = 0; chunk < packing_.chunks(); ++chunk)
    addUnpacked(packing_, chunkAt(packed_, chunk), dataOf(chunk));
}

}  // namespace treadle::summation

#pragma once
// A worker's tensor that travels packed (Packing): its packed bytes, and what packing has lost of its data, which is
// added to the next data (error feedback: Seide et al., Interspeech 2014; Karimireddy et al., "Error feedback fixes
// SignSGD", ICML 2019). One thread at a time.
//
// What is lost of data that is under way waits in the caller's memory, which nobody else touches, and is kept only when
// the sum is there.

#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/summation/packing.h"

namespace treadle::summation {

class CompressedTensor {
 public:
  explicit CompressedTensor(const Packing& packing);  // throws std::bad_alloc

  // Packs the data, float32, and what was lost before. It belongs to this tensor until `unpack`.
  MutableBytes pack(MutableBytes data);
  // The sum of all workers is in the packed bytes: the data becomes that sum.
  void unpack();

 private:
  std::span<float> dataOf(uint64_t chunk) const;
  std::span<float> keptOf(uint64_t chunk);

  const Packing packing_;
  std::vector<std::byte> packed_;
  std::vector<float> kept_;  // what was lost, of the last data whose sum has come
  std::span<float> data_;
};

}  // namespace treadle::summation

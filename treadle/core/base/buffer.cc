#include "treadle/core/base/buffer.h"

#include <cstdlib>
#include <new>

namespace treadle {

Buffer allocateBuffer(size_t sizeBytes) {
  constexpr size_t kAlignment = 64;
  size_t rounded = (sizeBytes + kAlignment - 1) / kAlignment * kAlignment;
  if (rounded == 0) rounded = kAlignment;
  void* memory = std::aligned_alloc(kAlignment, rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return {static_cast<std::byte*>(memory), sizeBytes, std::shared_ptr<void>(memory, &std::free)};
}

}  // namespace treadle

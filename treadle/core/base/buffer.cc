#include "treadle/core/base/buffer.h"

#include <cstdlib>
#include <new>

namespace treadle {
namespace {

class HeapMemory final : public Memory {
 public:
  explicit HeapMemory(size_t sizeBytes) : data(std::aligned_alloc(kAlignment, rounded(sizeBytes))) {
    if (data == nullptr) throw std::bad_alloc();
  }
  ~HeapMemory() override { std::free(data); }

  void* const data;

 private:
  static constexpr size_t kAlignment = 64;
  static size_t rounded(size_t sizeBytes) {
    size_t bytes = (sizeBytes + kAlignment - 1) / kAlignment * kAlignment;
    return bytes == 0 ? kAlignment : bytes;
  }
};

}  // namespace

Buffer allocateBuffer(size_t sizeBytes) {
  auto memory = std::make_shared<HeapMemory>(sizeBytes);
  auto* data = static_cast<std::byte*>(memory->data);
  return {data, sizeBytes, std::move(memory)};
}

}  // namespace treadle

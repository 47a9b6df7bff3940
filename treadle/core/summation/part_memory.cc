#include "treadle/core/summation/part_memory.h"

#include <algorithm>
#include <bit>
#include <new>

#include "treadle/core/io/private_pages.h"

namespace treadle::summation {

PartMemory::~PartMemory() {
  for (const MutableBytes& memory : all_) io::unmapPrivate(memory.data(), memory.size());
}

MutableBytes PartMemory::take(uint64_t bytes) {
  constexpr uint64_t kLeast = uint64_t{64} << 10;
  const size_t size = std::bit_ceil(std::max(bytes, kLeast));
  std::vector<std::byte*>& free = free_[size];
  if (free.empty()) {
    std::byte* pages = io::mapPrivate(size);
    if (pages == nullptr) throw std::bad_alloc();
    all_.emplace_back(pages, size);
    return all_.back();
  }
  std::byte* const last = free.back();
  free.pop_back();
  return {last, size};
}

void PartMemory::giveBack(MutableBytes memory) { free_[memory.size()].push_back(memory.data()); }

}  // namespace treadle::summation

#include "treadle/core/summation/part_memory.h"

#include <algorithm>
#include <bit>
#include <new>

#include "treadle/core/io/private_pages.h"

namespace treadle::summation {
namespace {

constexpr uint64_t kLeastBlock = uint64_t{4} << 10, kMapped = uint64_t{4} << 20;

}  // namespace

PartMemory::~PartMemory() {
  for (const MutableBytes& memory : mapped_) io::unmapPrivate(memory.data(), memory.size());
}

size_t PartMemory::sizeFor(uint64_t bytes) { return std::bit_ceil(std::max(bytes, kLeastBlock)); }

MutableBytes PartMemory::take(uint64_t bytes) {
  const size_t size = sizeFor(bytes);
  std::vector<std::byte*>& free = free_[size];
  if (!free.empty()) {
    std::byte* const last = free.back();
    free.pop_back();
    return {last, size};
  }
  if (size < kMapped) {
    const MutableBytes both = take(2 * size);
    giveBack(both.last(size));
    return both.first(size);
  }
  mapped_.reserve(mapped_.size() + 1);
  std::byte* pages = io::mapPrivate(size);
  if (pages == nullptr) throw std::bad_alloc();
  mapped_.emplace_back(pages, size);
  return mapped_.back();
}

void PartMemory::giveBack(MutableBytes memory) { free_[memory.size()].push_back(memory.data()); }

}  // namespace treadle::summation

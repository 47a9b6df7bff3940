#include "treadle/core/summation/part_memory.h"

#include <algorithm>
#include <bit>
#include <new>
#include <utility>

#include "treadle/core/io/private_pages.h"

namespace treadle::summation {
namespace {

constexpr uint64_t kLeastBlock = uint64_t{4} << 10, kMapped = uint64_t{4} << 20;

}  // namespace

PartMemory::~PartMemory() {
  for (const auto& [pages, size] : mapped_) io::unmapPrivate(pages, size);
}

size_t PartMemory::sizeFor(uint64_t bytes) { return std::bit_ceil(std::max(bytes, kLeastBlock)); }

MutableBytes PartMemory::take(uint64_t bytes) {
  const size_t size = sizeFor(bytes);
  MutableBytes block = takeFree(size);
  if (block.empty()) {
    joinFree();
    block = takeFree(size);
  }
  if (block.empty()) block = map(std::max(size, kMapped));
  while (block.size() > size) {
    giveBack(block.last(block.size() / 2));
    block = block.first(block.size() / 2);
  }
  return block;
}

void PartMemory::giveBack(MutableBytes memory) { free_[memory.size()].push_back(memory.data()); }

// The smallest one that is large enough; empty: there is none.
MutableBytes PartMemory::takeFree(size_t size) {
  for (auto blocks = free_.lower_bound(size); blocks != free_.end(); ++blocks) {
    if (blocks->second.empty()) continue;
    std::byte* const last = blocks->second.back();
    blocks->second.pop_back();
    return {last, blocks->first};
  }
  return {};
}

// Halves that are both free become the block that they were, the smallest ones first.
void PartMemory::joinFree() {
  for (size_t size = kLeastBlock; size < kMapped; size *= 2) {
    std::vector<std::byte*> blocks = std::exchange(free_[size], {});
    std::ranges::sort(blocks);
    for (size_t i = 0; i < blocks.size(); ++i) {
      const bool isWhole = isFirstHalf(blocks[i], size) && i + 1 < blocks.size() && blocks[i + 1] == blocks[i] + size;
      free_[isWhole ? 2 * size : size].push_back(blocks[i]);
      if (isWhole) ++i;
    }
  }
}

bool PartMemory::isFirstHalf(const std::byte* block, size_t size) const {
  const std::byte* const pages = std::prev(mapped_.upper_bound(block))->first;
  return static_cast<size_t>(block - pages) / size % 2 == 0;
}

MutableBytes PartMemory::map(size_t size) {
  std::byte* const pages = io::mapPrivate(size);
  if (pages == nullptr) throw std::bad_alloc();
  try {
    mapped_.emplace(pages, size);
  } catch (...) {
    io::unmapPrivate(pages, size);
    throw;
  }
  return {pages, size};
}

}  // namespace treadle::summation

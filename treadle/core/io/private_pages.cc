#include "treadle/core/io/private_pages.h"

#include <sys/mman.h>

namespace treadle::io {
namespace {

// Smaller mappings share huge pages with their neighbours, and keep them when those are returned.
constexpr size_t kHugeFrom = 4U << 20;

}  // namespace

std::byte* mapPrivate(size_t sizeBytes) {
  void* pages = ::mmap(nullptr, sizeBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) return nullptr;
  if (sizeBytes >= kHugeFrom) (void)::madvise(pages, sizeBytes, MADV_HUGEPAGE);  // not every system grants it
  return static_cast<std::byte*>(pages);
}

// A process may have only so many mappings, and to unmap a part of one makes two.
void unmapPrivate(std::byte* pages, size_t sizeBytes) {
  if (::munmap(pages, sizeBytes) != 0) (void)::madvise(pages, sizeBytes, MADV_DONTNEED);
}

}  // namespace treadle::io

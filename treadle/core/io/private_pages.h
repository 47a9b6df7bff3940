#pragma once
// Whole pages of memory that only this process can see (mmap(2)). A child of fork(2) gets a copy, page by page on
// write. Any thread.

#include <cstddef>

namespace treadle::io {

// `sizeBytes` of zeros, from the start of a page; null when the system has no address space left. Pages come when they
// are first written, huge ones where they fit and the system has some.
std::byte* mapPrivate(size_t sizeBytes);
// Unmaps all of what mapPrivate returned.
void unmapPrivate(std::byte* pages, size_t sizeBytes);

}  // namespace treadle::io

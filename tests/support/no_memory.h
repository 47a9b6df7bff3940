#pragma once
// Allocations that fail. Replaces operator new, so only one file of a program includes it. Sanitizers replace it
// themselves: none fails there.

#include <cstdint>
#include <cstdlib>
#include <new>

#include "tests/support/sanitizer.h"

namespace treadle::test {

// Allocations of so many bytes or more fail on this thread, but those of types with an alignment of their own.
inline thread_local size_t leastFailing = SIZE_MAX;

inline constexpr bool kMemoryMayFail = !kSanitized;

}  // namespace treadle::test

#ifndef TREADLE_TEST_SANITIZED
void* operator new(size_t size) {
  void* memory = size < treadle::test::leastFailing ? std::malloc(size > 0 ? size : 1) : nullptr;
  return memory != nullptr ? memory : throw std::bad_alloc();
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return size < treadle::test::leastFailing ? std::malloc(size > 0 ? size : 1) : nullptr;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
#endif

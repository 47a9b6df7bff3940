#pragma once
// Blocks of a pool, and its arena as a peer gets it, for tests that play both sides of PeerMemory.

#include <fcntl.h>

#include <vector>

#include "treadle/core/memory/block_pool.h"

namespace treadle::test {

inline constexpr size_t kMiB = 1U << 20;

inline io::Fd arenaOf(const memory::BlockPool& pool) { return io::Fd(::fcntl(pool.arena().fd(), F_DUPFD_CLOEXEC, 0)); }

inline std::vector<std::byte> bytesOf(size_t size, int value) {
  return std::vector<std::byte>(size, static_cast<std::byte>(value));
}

// A block of the pool's, as a tensor that `treadle::emptyShared` made would have it.
inline Buffer blockOf(memory::BlockPool& pool, size_t size, int value) {
  auto block = pool.allocate(size);
  block->fill(bytesOf(size, value));
  std::byte* data = block->data();
  return {data, size, std::move(block), true};
}

}  // namespace treadle::test

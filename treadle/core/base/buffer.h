#pragma once
// A stretch of bytes that travels beside a message's payload, a tensor's memory as a rule. A buffer either owns its
// bytes together with whoever else holds `owner`, and nobody will write to them any more (then a sender may keep it
// until the bytes are out), or it only borrows them until the send call returns.

#include <cstddef>
#include <memory>
#include <span>

namespace treadle {

using Bytes = std::span<const std::byte>;
using MutableBytes = std::span<std::byte>;

// What bytes live in: freed, or given back, with its last holder. Rooms above derive their kinds of memory from it.
class Memory {
 public:
  virtual ~Memory() = default;
};

// A plain value: copying one copies the handle, never the bytes. The buffers of a received message always
// have an owner; whoever takes them may write to them.
struct Buffer {
  std::byte* data = nullptr;
  size_t sizeBytes = 0;
  std::shared_ptr<Memory> owner = {};  // null: borrowed
  // Nobody but the sender of this message holds the owner, and it gives it away: the receiver may have the memory
  // itself rather than a copy of it.
  bool given = false;

  bool borrowed() const { return owner == nullptr; }
  Bytes bytes() const { return {data, sizeBytes}; }
  MutableBytes mutableBytes() const { return {data, sizeBytes}; }

  static Buffer borrow(const void* data, size_t sizeBytes) {
    // The sender never writes; the pointer is mutable for receivers only.
    return {static_cast<std::byte*>(const_cast<void*>(data)), sizeBytes};
  }
};

// An owned block of `sizeBytes` bytes, uninitialised, aligned to 64 (a cache line, and what the widest vector
// instructions ask for). Two allocations: the block and its owner. Throws std::bad_alloc. Any thread.
Buffer allocateBuffer(size_t sizeBytes);

}  // namespace treadle

#pragma once
// Cross-memory attach (process_vm_readv(2)): this version of Treadle sends nothing that way, so `treadle doctor` only
// says whether the kernel would allow it between two workers, by reading the memory of one from the other. Functions
// that workers call on each other; they do not wait.

#include <cstdint>
#include <string>

#include "treadle/core/rpc/codec.h"

namespace treadle::cli {

// Bytes of a process that others may try to read, and what decides whether they can.
struct ReadableMemory {
  int32_t pid = 0;
  uint32_t user = 0;
  uint64_t pidNamespace = 0;  // 0: not known
  uint64_t address = 0, sizeBytes = 0;
};
TREADLE_FIELDS(ReadableMemory, pid, user, pidNamespace, address, sizeBytes)

ReadableMemory memoryToRead();

// Empty when all of it was read and is what it should be; otherwise why not, and what to do.
std::string readMemory(const ReadableMemory& memory);

// The inode of a namespace of this process ("net", "pid"), which tells it from others; 0 when it is not known.
uint64_t namespaceOf(const std::string& kind);

}  // namespace treadle::cli

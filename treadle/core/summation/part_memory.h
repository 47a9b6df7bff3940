#pragma once
// The memory in which a machine keeps what workers send of a part, in huge pages where the system has them, and kept
// for later parts: fresh pages cost more than the sums. Blocks have sizes that are powers of two; small ones are halves
// of larger ones, and are joined before more memory is mapped. One thread at a time.

#include <functional>
#include <map>
#include <vector>

#include "treadle/core/base/buffer.h"

namespace treadle::summation {

class PartMemory {
 public:
  PartMemory() = default;
  PartMemory(const PartMemory&) = delete;
  PartMemory& operator=(const PartMemory&) = delete;
  ~PartMemory();

  // What a block for so many bytes takes.
  static size_t sizeFor(uint64_t bytes);
  // At least so many bytes. Throws std::bad_alloc.
  MutableBytes take(uint64_t bytes);
  void giveBack(MutableBytes memory);

 private:
  MutableBytes takeFree(size_t size);
  void joinFree();
  bool isFirstHalf(const std::byte* block, size_t size) const;
  MutableBytes map(size_t size);

  std::map<size_t, std::vector<std::byte*>> free_;  // by size; last in, first out
  std::map<std::byte*, size_t, std::less<>> mapped_;
};

}  // namespace treadle::summation

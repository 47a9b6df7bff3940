#pragma once
// CRC-32C (Castagnoli, RFC 3720 appendix B.4): tells damaged bytes from good ones. Pure; any thread.

#include <cstdint>

#include "treadle/core/base/buffer.h"

namespace treadle::wire {

// The checksum of `bytes` after bytes whose checksum was `before` (0 at the start).
uint32_t crc32c(Bytes bytes, uint32_t before = 0);

// The same without the processor's own instruction: for processors that have none.
uint32_t crc32cPortable(Bytes bytes, uint32_t before = 0);

}  // namespace treadle::wire

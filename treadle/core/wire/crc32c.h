#pragma once
// CRC-32C (Castagnoli et al. 1993; RFC 3720 section 12.1 and appendix B.4): tells damaged bytes from good ones, and is
// no defence against bytes that were changed on purpose. Polynomial 0x1EDC6F41, reflected, all ones before and
// complemented after; of "123456789" it is 0xE3069283. Chosen because x86-64 has an instruction for it; other
// processors use a table. Pure; any thread. crc32c_x86.h has how long stretches are summed at the speed of memory.

#include <cstdint>

#include "treadle/core/base/buffer.h"

namespace treadle::wire {

// The checksum of `bytes` after bytes whose checksum was `before` (0 at the start).
uint32_t crc32c(Bytes bytes, uint32_t before = 0);

// Copies `from` to `to`, which has as much room, and yields the checksum of the copy: of what was read once, whoever
// writes to `from` meanwhile. Costs hardly more than the checksum alone.
uint32_t copyWithCrc32c(MutableBytes to, Bytes from, uint32_t before = 0);

// The same without the processor's own instruction: for processors that have none.
uint32_t crc32cPortable(Bytes bytes, uint32_t before = 0);

}  // namespace treadle::wire

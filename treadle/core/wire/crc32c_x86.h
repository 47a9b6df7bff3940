#pragma once
// CRC-32C by the instructions of x86-64; only crc32c.cc and its tests see it. Each function is for processors that have
// what its `has` says; `to` may be null, otherwise the bytes are also copied there. A `crc` is the register's state:
// not complemented. Pure; any thread.

#include <cstdint>

#include "treadle/core/base/buffer.h"

#if defined(__x86_64__)
namespace treadle::wire::x86 {

// Three sums at once by the crc32 instruction (SSE 4.2), which takes three cycles and of which one may begin in each:
// eight bytes a cycle. V. Gopal et al., "Fast CRC Computation for iSCSI Polynomial Using CRC32 Instruction", Intel
// 2011.
bool hasCrcInstruction();
uint32_t inThrees(Bytes from, std::byte* to, uint32_t crc);

// Carry-less multiplication of 64 bytes at a time (AVX-512, VPCLMULQDQ): as fast as memory is read. V. Gopal et al.,
// "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel 2009.
bool hasWideMultiplication();
uint32_t byFolding(Bytes from, std::byte* to, uint32_t crc);

}  // namespace treadle::wire::x86
#endif

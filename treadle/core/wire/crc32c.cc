#include "treadle/core/wire/crc32c.h"

#include <array>
#include <cstring>

#include "treadle/core/base/check.h"
#include "treadle/core/wire/crc32c_x86.h"

namespace treadle::wire {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

constexpr std::array<uint32_t, 256> makeTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t value = byte;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) ? kPolynomial : 0);
    table[byte] = value;
  }
  return table;
}

constexpr auto kTable = makeTable();

uint32_t portable(Bytes bytes, std::byte* to, uint32_t crc) {
  if (to != nullptr && !bytes.empty()) {
    std::memcpy(to, bytes.data(), bytes.size());
    bytes = {to, bytes.size()};
  }
  for (std::byte byte : bytes) crc = kTable[(crc ^ static_cast<uint32_t>(byte)) & 0xFF] ^ (crc >> 8);
  return crc;
}

uint32_t update(Bytes bytes, std::byte* to, uint32_t crc) {
#if defined(__x86_64__)
  if (x86::hasWideMultiplication()) return x86::byFolding(bytes, to, crc);
  if (x86::hasCrcInstruction()) return x86::inThrees(bytes, to, crc);
#endif
  return portable(bytes, to, crc);
}

}  // namespace

uint32_t crc32c(Bytes bytes, uint32_t before) { return ~update(bytes, nullptr, ~before); }

uint32_t copyWithCrc32c(MutableBytes to, Bytes from, uint32_t before) {
  TREADLE_CHECK(to.size() == from.size(), "a copy needs as much room as there are bytes");
  return ~update(from, to.data(), ~before);
}

uint32_t crc32cPortable(Bytes bytes, uint32_t before) { return ~portable(bytes, nullptr, ~before); }

}  // namespace treadle::wire

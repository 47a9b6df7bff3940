#include "treadle/core/wire/crc32c.h"

#include <array>
#include <cstring>

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

uint32_t portable(Bytes bytes, uint32_t crc) {
  for (std::byte byte : bytes) crc = kTable[(crc ^ static_cast<uint32_t>(byte)) & 0xFF] ^ (crc >> 8);
  return crc;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t withInstruction(Bytes bytes, uint32_t crc) {
  uint64_t wide = crc;
  while (bytes.size() >= sizeof wide) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), sizeof word);
    wide = __builtin_ia32_crc32di(wide, word);
    bytes = bytes.subspan(sizeof word);
  }
  crc = static_cast<uint32_t>(wide);
  for (std::byte byte : bytes) crc = __builtin_ia32_crc32qi(crc, static_cast<unsigned char>(byte));
  return crc;
}

uint32_t update(Bytes bytes, uint32_t crc) {
  static const bool has = __builtin_cpu_supports("sse4.2") != 0;
  return has ? withInstruction(bytes, crc) : portable(bytes, crc);
}
#else
uint32_t update(Bytes bytes, uint32_t crc) { return portable(bytes, crc); }
#endif

}  // namespace

uint32_t crc32c(Bytes bytes, uint32_t before) { return ~update(bytes, ~before); }

uint32_t crc32cPortable(Bytes bytes, uint32_t before) { return ~portable(bytes, ~before); }

}  // namespace treadle::wire

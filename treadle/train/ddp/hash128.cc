#include "treadle/train/ddp/hash128.h"

#include <array>
#include <bit>
#include <cstring>

#include "treadle/core/base/hash.h"

namespace treadle::ddp {
namespace {

constexpr uint64_t kMurmurFirst = 0x87c37b91114253d5, kMurmurSecond = 0x4cf5ad432745937f;
constexpr size_t kBlockBytes = 16;

// Little-endian, as the wire is (wire/writer.h).
uint64_t wordAt(const std::byte* bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes, sizeof word);
  return word;
}

uint64_t mixedFirst(uint64_t word) { return std::rotl(word * kMurmurFirst, 31) * kMurmurSecond; }
uint64_t mixedSecond(uint64_t word) { return std::rotl(word * kMurmurSecond, 33) * kMurmurFirst; }

}  // namespace

Hash128 hashed(const Hash128& before, Bytes bytes) {
  auto [first, second] = before;
  Bytes rest = bytes;
  for (; rest.size() >= kBlockBytes; rest = rest.subspan(kBlockBytes)) {
    first = (std::rotl(first ^ mixedFirst(wordAt(rest.data())), 27) + second) * 5 + 0x52dce729;
    second = (std::rotl(second ^ mixedSecond(wordAt(rest.data() + 8)), 31) + first) * 5 + 0x38495ab5;
  }
  std::array<std::byte, kBlockBytes> last = {};  // zeros change nothing
  if (!rest.empty()) std::memcpy(last.data(), rest.data(), rest.size());
  first ^= mixedFirst(wordAt(last.data())) ^ bytes.size();
  second ^= mixedSecond(wordAt(last.data() + 8)) ^ bytes.size();
  first += second;
  second += first;
  first = base::mixed(first);
  second = base::mixed(second);
  first += second;
  return {first, second + first};
}

std::string inHex(const Hash128& hash) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string digits;
  for (uint64_t half : {hash.first, hash.second})
    for (int shift = 60; shift >= 0; shift -= 4) digits += kDigits[(half >> shift) & 15];
  return digits;
}

}  // namespace treadle::ddp

#pragma once
// The header of a safetensors file: which tensors lie where in the data behind it. Pure functions over text
// and numbers, without any tensor library, so that the part that reads a stranger's bytes is small, quick to
// build and fuzzed. They keep no state; any thread may call them.
//
// The file (https://huggingface.co/docs/safetensors, "Format"):
//   8 bytes   N, the header's length, unsigned, little-endian; at most kMaxHeaderBytes
//   N bytes   a JSON object, first byte '{', padded at its end with spaces so that the data begins at a
//   multiple of 8:
//             {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}, ..., "__metadata__":
//             {"k": "v"}}
//   the rest  the tensors' elements, little-endian, row-major; offsets count from here; no gap, no overlap,
//   no rest

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "treadle/core/base/status.h"

namespace treadle::safetensors {

inline constexpr uint64_t kLengthBytes = 8;
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
inline constexpr size_t kMaxRank = 64;                    // what libtorch's kernels can handle

// The element types that the format and libtorch share.
enum class ElementType : uint8_t {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64,
  kC64
};

struct ElementInfo {
  std::string_view name;  // as the header spells it
  uint64_t sizeBytes;
};

// In the order of `ElementType`.
inline constexpr std::array<ElementInfo, 18> kElementInfos = {{
    {"BOOL", 1},
    {"U8", 1},
    {"I8", 1},
    {"F8_E4M3", 1},
    {"F8_E5M2", 1},
    {"F8_E4M3FNUZ", 1},
    {"F8_E5M2FNUZ", 1},
    {"I16", 2},
    {"U16", 2},
    {"F16", 2},
    {"BF16", 2},
    {"I32", 4},
    {"U32", 4},
    {"F32", 4},
    {"I64", 8},
    {"U64", 8},
    {"F64", 8},
    {"C64", 8},
}};

inline const ElementInfo& infoOf(ElementType type) { return kElementInfos[static_cast<size_t>(type)]; }
std::optional<ElementType> elementTypeOf(std::string_view name);

struct TensorEntry {
  std::string name;
  ElementType type = ElementType::kF32;
  std::vector<int64_t> shape;  // empty: one element
  uint64_t begin = 0;          // offsets in bytes from the start of the data
  uint64_t end = 0;
};

struct Header {
  std::vector<TensorEntry> tensors;  // by offset
  std::map<std::string, std::string> metadata;
};

// The header's length from a file's first 8 bytes, checked against the limit and the size of the whole file.
// To be called before any memory is taken for the header.
Result<uint64_t> parseHeaderLength(std::span<const std::byte, kLengthBytes> bytes, uint64_t fileBytes);

// Reads a header that stands before `dataBytes` bytes of data. What it returns is safe to act on: names are
// unique, shapes fit int64, and the tensors cover the data exactly, so that nothing larger than the file need
// be allocated.
Result<Header> parseHeader(std::string_view json, uint64_t dataBytes);

// Sets the offsets of `tensors` and their order: widest elements first, then by name, so that each tensor is
// aligned to its elements and the same tensors always make the same file. Fails on shapes whose bytes do not
// fit an int64.
Status layOut(std::vector<TensorEntry>& tensors);

// The length and the padded JSON, as they stand at the start of a file. Fails on names that are not UTF-8,
// are used twice or are "__metadata__", and on headers over the limit.
Result<std::string> formatHeader(const Header& header);

// A name as error messages show it: in quotes, escaped, not longer than a line can bear.
std::string inQuotes(std::string_view name);

}  // namespace treadle::safetensors

#include "treadle/train/checkpoint/header.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "treadle/train/checkpoint/header_parser.h"

namespace treadle::safetensors {
namespace {

using Json = nlohmann::json;

// libtorch counts elements and bytes in int64; file offsets are signed too.
constexpr uint64_t kMaxInt64 = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());

// The bytes of a tensor; nothing when they, or the strides libtorch would compute, do not fit an int64.
// Strides treat a dimension of 0 as 1, which is why an empty tensor with absurd other dimensions is refused
// too.
std::optional<uint64_t> sizeBytesOf(const TensorEntry& tensor) {
  uint64_t spread = infoOf(tensor.type).sizeBytes;
  bool empty = false;
  for (int64_t dimension : tensor.shape) {
    empty = empty || dimension == 0;
    uint64_t factor = std::max<uint64_t>(static_cast<uint64_t>(dimension), 1);
    if (__builtin_mul_overflow(spread, factor, &spread) || spread > kMaxInt64) return std::nullopt;
  }
  return empty ? 0 : spread;
}

// The numbers are said as the file has them: whoever wrote the file looks for these.
Status wrongOffsets(const TensorEntry& tensor, const std::string& why) {
  return dataLoss("tensor " + inQuotes(tensor.name) + " claims bytes " + std::to_string(tensor.begin) + " to " +
                  std::to_string(tensor.end) + " of the data, " + why);
}

// `expectedBegin` is where the tensor before it ended: with the tensors in order this finds every overlap and
// gap.
Status checkOffsets(const TensorEntry& tensor, uint64_t expectedBegin, uint64_t dataBytes) {
  std::optional<uint64_t> sizeBytes = sizeBytesOf(tensor);
  if (!sizeBytes)
    return dataLoss("the shape of tensor " + inQuotes(tensor.name) + " holds more elements than can be addressed");
  if (tensor.begin > tensor.end) return wrongOffsets(tensor, "which end before they begin");
  if (tensor.end > dataBytes) return wrongOffsets(tensor, "of which there are only " + std::to_string(dataBytes));
  if (tensor.begin < expectedBegin) return wrongOffsets(tensor, "which overlap another tensor's");
  if (tensor.begin > expectedBegin) return wrongOffsets(tensor, "which leaves a gap before them");
  if (tensor.end - tensor.begin != *sizeBytes)
    return wrongOffsets(tensor, "but its dtype and shape need " + std::to_string(*sizeBytes) + " bytes");
  return {};
}

// The tensors must tile the data: what nobody claims could be a hiding place, and what two claim is a
// mistake.
Status checkTiling(std::vector<TensorEntry>& tensors, uint64_t dataBytes) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t covered = 0;
  for (const TensorEntry& tensor : tensors) {
    TREADLE_RETURN_IF_ERROR(checkOffsets(tensor, covered, dataBytes));
    covered = tensor.end;
  }
  if (covered == dataBytes) return {};
  return dataLoss(std::to_string(dataBytes - covered) + " bytes at its end belong to no tensor");
}

// The JSON library does the escaping, and refuses what is not UTF-8.
Result<std::string> asJson(const std::string& text, std::string_view what) {
  try {
    return Json(text).dump();
  } catch (const Json::exception&) {  // thrown for one reason only
    return invalidArgument(std::string(what) + " " + inQuotes(text) + " is not UTF-8, which the format demands");
  }
}

Status appendMetadata(const std::map<std::string, std::string>& metadata, std::string& out) {
  out += "\"__metadata__\":{";
  for (bool first = true; const auto& [key, value] : metadata) {
    Result<std::string> keyJson = asJson(key, "the metadata key");
    if (!keyJson.ok()) return keyJson.status();
    Result<std::string> valueJson = asJson(value, "the metadata value");
    if (!valueJson.ok()) return valueJson.status();
    out += (first ? "" : ",") + *keyJson + ":" + *valueJson;
    first = false;
  }
  out += "}";
  return {};
}

// Fields in the order that the safetensors package writes them, without blanks.
Status appendTensor(const TensorEntry& tensor, std::string& out) {
  if (tensor.name == kMetadataKey)
    return invalidArgument("no tensor can be named \"__metadata__\": the format uses that name");
  Result<std::string> name = asJson(tensor.name, "the tensor name");
  if (!name.ok()) return name.status();
  out += *name + ":{\"dtype\":\"" + std::string(infoOf(tensor.type).name) +
         "\",\"shape\":" + Json(tensor.shape).dump() + ",\"data_offsets\":[" + std::to_string(tensor.begin) + "," +
         std::to_string(tensor.end) + "]}";
  return {};
}

// A map cannot hold a name twice, but this function takes a list.
Status checkNamesDiffer(const std::vector<TensorEntry>& tensors) {
  std::set<std::string_view> names;
  for (const TensorEntry& tensor : tensors) {
    if (!names.insert(tensor.name).second) return invalidArgument("two tensors are named " + inQuotes(tensor.name));
  }
  return {};
}

// Byte by byte, and so right on any machine.
std::string littleEndian(uint64_t value) {
  std::string bytes;
  for (uint64_t i = 0; i < kLengthBytes; ++i) bytes.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return bytes;
}

}  // namespace

std::optional<ElementType> elementTypeOf(std::string_view name) {
  for (size_t i = 0; i < kElementInfos.size(); ++i) {
    if (kElementInfos[i].name == name) return static_cast<ElementType>(i);
  }
  return std::nullopt;
}

Result<uint64_t> parseHeaderLength(std::span<const std::byte, kLengthBytes> bytes, uint64_t fileBytes) {
  uint64_t length = 0;
  for (uint64_t i = 0; i < kLengthBytes; ++i) length |= std::to_integer<uint64_t>(bytes[i]) << (8 * i);
  // Both before memory is taken: 8 bytes could ask for 16 exbibytes.
  if (length > kMaxHeaderBytes) {
    return dataLoss("its first 8 bytes announce a header of " + std::to_string(length) +
                    " bytes, and the format allows " + std::to_string(kMaxHeaderBytes));
  }
  if (fileBytes < kLengthBytes || length > fileBytes - kLengthBytes) {
    return dataLoss("it is cut short: " + std::to_string(fileBytes) + " bytes, and the header alone takes " +
                    std::to_string(length + kLengthBytes));
  }
  return length;
}

Result<Header> parseHeader(std::string_view json, uint64_t dataBytes) {
  // The format's own rule; it also keeps out byte order marks, which the JSON parser would skip.
  if (json.empty() || json.front() != '{') return dataLoss("its header does not begin with '{'");
  Result<Header> header = parseEntries(json);
  // After this the header can be acted on: see the promise in header.h.
  if (header.ok()) TREADLE_RETURN_IF_ERROR(checkTiling(header->tensors, dataBytes));
  return header;
}

Status layOut(std::vector<TensorEntry>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const TensorEntry& a, const TensorEntry& b) {
    uint64_t widthA = infoOf(a.type).sizeBytes, widthB = infoOf(b.type).sizeBytes;
    return widthA != widthB ? widthA > widthB : a.name < b.name;
  });
  // Wide before narrow: each offset is then a multiple of its element size without any padding.
  uint64_t offset = 0;
  for (TensorEntry& tensor : tensors) {
    std::optional<uint64_t> sizeBytes = sizeBytesOf(tensor);
    tensor.begin = offset;
    if (!sizeBytes || __builtin_add_overflow(offset, *sizeBytes, &offset) || offset > kMaxInt64)
      return invalidArgument("tensor " + inQuotes(tensor.name) + " does not fit into a file");
    tensor.end = offset;
  }
  return {};
}

Result<std::string> formatHeader(const Header& header) {
  TREADLE_RETURN_IF_ERROR(checkNamesDiffer(header.tensors));
  std::string json = "{";
  if (!header.metadata.empty()) TREADLE_RETURN_IF_ERROR(appendMetadata(header.metadata, json));
  for (const TensorEntry& tensor : header.tensors) {
    if (json.size() > 1) json += ",";
    TREADLE_RETURN_IF_ERROR(appendTensor(tensor, json));
  }
  json += "}";
  // So that the data, and with it each tensor, is aligned when a reader maps the file.
  json.resize((json.size() + 7) / 8 * 8, ' ');
  if (json.size() > kMaxHeaderBytes) {
    return invalidArgument("the names and metadata make a header of " + std::to_string(json.size()) +
                           " bytes, and the format allows " + std::to_string(kMaxHeaderBytes));
  }
  return littleEndian(json.size()) + json;
}

std::string inQuotes(std::string_view name) {
  // Names come from strangers: escaped, so that they cannot forge a line of a log, and cut.
  constexpr size_t kLongest = 80;
  std::string shown(name.substr(0, kLongest));
  if (name.size() > kLongest) shown += "...";
  return Json(shown).dump(-1, ' ', true, Json::error_handler_t::replace);
}

}  // namespace treadle::safetensors

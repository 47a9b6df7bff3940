#include "treadle/train/checkpoint/safetensors.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/train/checkpoint/file.h"
#include "treadle/train/checkpoint/header.h"

namespace treadle::safetensors {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the format is little-endian and elements are copied as they are");

// In the order of `ElementType`.
constexpr std::array<at::ScalarType, kElementInfos.size()> kScalarTypes = {
    at::kBool,
    at::kByte,
    at::kChar,
    at::kFloat8_e4m3fn,
    at::kFloat8_e5m2,
    at::kFloat8_e4m3fnuz,
    at::kFloat8_e5m2fnuz,
    at::kShort,
    at::kUInt16,
    at::kHalf,
    at::kBFloat16,
    at::kInt,
    at::kUInt32,
    at::kFloat,
    at::kLong,
    at::kUInt64,
    at::kDouble,
    at::kComplexFloat,
};

at::ScalarType scalarTypeOf(ElementType type) { return kScalarTypes[static_cast<size_t>(type)]; }

// What libtorch threw, as a status in one line: its own text goes on with a C++ stack trace.
Status torchFailed(const std::string& what) {
  try {
    throw;
  } catch (const c10::Error& error) {
    std::string text = error.what_without_backtrace();
    return resourceExhausted(what + ": " + text.substr(0, text.find('\n')));
  } catch (const std::exception& error) {
    return resourceExhausted(what + ": " + error.what());
  }
}

// What cannot be saved is refused before the file is touched.
Result<TensorEntry> entryOf(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.defined()) return invalidArgument("tensor " + inQuotes(name) + " is undefined");
  if (tensor.layout() != at::kStrided || tensor.is_nested() || tensor.is_quantized() || tensor.is_meta())
    return invalidArgument("tensor " + inQuotes(name) + " is not a plain dense tensor; save the tensors it is made of");
  auto found = std::find(kScalarTypes.begin(), kScalarTypes.end(), tensor.scalar_type());
  if (found == kScalarTypes.end()) {
    return invalidArgument("tensor " + inQuotes(name) + " is of type " + c10::toString(tensor.scalar_type()) +
                           ", which a safetensors file cannot hold");
  }
  auto type = static_cast<ElementType>(found - kScalarTypes.begin());
  return TensorEntry{.name = name, .type = type, .shape = tensor.sizes().vec(), .begin = 0, .end = 0};
}

Result<Header> headerOf(const NamedTensors& tensors, const Metadata& metadata) {
  Header header{.tensors = {}, .metadata = metadata};
  for (const auto& [name, tensor] : tensors) {
    Result<TensorEntry> entry = entryOf(name, tensor);
    if (!entry.ok()) return entry.status();
    header.tensors.push_back(*std::move(entry));
  }
  // By width and name, not by the order of the map: the same tensors always make the same file.
  TREADLE_RETURN_IF_ERROR(layOut(header.tensors));
  return header;
}

// One tensor at a time is made contiguous and brought to the CPU, so that saving never needs a second copy of
// the model.
Status writeTensor(NewFile& file, const std::string& name, const at::Tensor& tensor) {
  at::Tensor plain;
  try {
    // resolve_*: a conjugated or negated view of complex numbers only carries a flag; its memory holds other
    // numbers.
    plain = tensor.detach().resolve_conj().resolve_neg().to(at::kCPU).contiguous();
  } catch (...) {
    return torchFailed("tensor " + inQuotes(name) + " cannot be brought into one piece on the CPU");
  }
  return file.write({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
}

// The order of things: all that can be refused, then a hidden file, then its bytes, then its name.
Status writeAll(const std::string& path, const NamedTensors& tensors, const Metadata& metadata) {
  Result<Header> header = headerOf(tensors, metadata);
  if (!header.ok()) return header.status();
  Result<std::string> text = formatHeader(*header);
  if (!text.ok()) return text.status();
  Result<NewFile> file = NewFile::create(path);
  if (!file.ok()) return file.status();
  TREADLE_RETURN_IF_ERROR(file->write(std::as_bytes(std::span(*text))));
  for (const TensorEntry& entry : header->tensors)
    TREADLE_RETURN_IF_ERROR(writeTensor(*file, entry.name, tensors.at(entry.name)));
  // Until here the old file, if there is one, is untouched.
  return file->commit();
}

struct OpenedFile {
  OldFile file;
  Header header;
  uint64_t dataOffset;
};

// Everything in the header has been checked when this returns; what is left to go wrong is reading the
// elements and memory.
Result<OpenedFile> openChecked(const std::string& path) {
  Result<OldFile> file = OldFile::open(path);
  if (!file.ok()) return file.status();
  if (file->sizeBytes() < kLengthBytes)
    return dataLoss("it is cut short: " + std::to_string(file->sizeBytes()) + " bytes are too few for any header");
  std::array<std::byte, kLengthBytes> lengthBytes{};
  TREADLE_RETURN_IF_ERROR(file->read(0, lengthBytes));
  Result<uint64_t> length = parseHeaderLength(lengthBytes, file->sizeBytes());
  if (!length.ok()) return length.status();
  std::string json(*length, '\0');
  TREADLE_RETURN_IF_ERROR(file->read(kLengthBytes, std::as_writable_bytes(std::span(json))));
  uint64_t dataOffset = kLengthBytes + *length;
  Result<Header> header = parseHeader(json, file->sizeBytes() - dataOffset);
  if (!header.ok()) return header.status();
  return OpenedFile{*std::move(file), *std::move(header), dataOffset};
}

// libtorch's kernels may do anything with a bool that is neither 0 nor 1.
Status checkBools(const TensorEntry& entry, std::span<const std::byte> bytes) {
  bool fine = std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte <= std::byte{1}; });
  return fine ? Status() : dataLoss("tensor " + inQuotes(entry.name) + " is BOOL and holds bytes other than 0 and 1");
}

Result<at::Tensor> readTensor(const OpenedFile& opened, const TensorEntry& entry) {
  at::Tensor tensor;
  try {
    // As large as its part of the file, no more: parseHeader has checked that.
    tensor = at::empty(entry.shape, at::TensorOptions(scalarTypeOf(entry.type)));
  } catch (...) {
    return torchFailed("no memory for tensor " + inQuotes(entry.name));
  }
  std::span<std::byte> bytes(static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes());
  TREADLE_RETURN_IF_ERROR(opened.file.read(opened.dataOffset + entry.begin, bytes));
  if (entry.type == ElementType::kBool) TREADLE_RETURN_IF_ERROR(checkBools(entry, bytes));
  return tensor;
}

// Whole or not at all: a caller never gets half a model.
Result<NamedTensors> readAll(const std::string& path) {
  Result<OpenedFile> opened = openChecked(path);
  if (!opened.ok()) return opened.status();
  NamedTensors tensors;
  for (const TensorEntry& entry : opened->header.tensors) {
    Result<at::Tensor> tensor = readTensor(*opened, entry);
    if (!tensor.ok()) return tensor.status();
    tensors.emplace(entry.name, *std::move(tensor));
  }
  return tensors;
}

// The path is said once, here: the functions below speak of "it".
std::string cannotRead(const std::string& path) { return "cannot read " + inQuotes(path) + " as safetensors"; }

}  // namespace

Status trySaveSafetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata) {
  Status status = writeAll(path, tensors, metadata);
  return status.ok() ? status : status.withContext("cannot save " + inQuotes(path));
}

Result<NamedTensors> tryLoadSafetensors(const std::string& path) {
  Result<NamedTensors> tensors = readAll(path);
  if (!tensors.ok()) return tensors.status().withContext(cannotRead(path));
  return tensors;
}

Result<Metadata> tryLoadSafetensorsMetadata(const std::string& path) {
  Result<OpenedFile> opened = openChecked(path);
  if (!opened.ok()) return opened.status().withContext(cannotRead(path));
  return std::move(opened->header.metadata);
}

void saveSafetensors(const std::string& path, const NamedTensors& tensors, const Metadata& metadata) {
  throwIfError(trySaveSafetensors(path, tensors, metadata));
}

NamedTensors loadSafetensors(const std::string& path) { return valueOrThrow(tryLoadSafetensors(path)); }

Metadata loadSafetensorsMetadata(const std::string& path) { return valueOrThrow(tryLoadSafetensorsMetadata(path)); }

}  // namespace treadle::safetensors

#include "treadle/tensor/bridge/tensor_codec.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <limits>

#include "treadle/tensor/bridge/tensor_hooks.h"
#include "treadle/tensor/bridge/tensor_memory.h"

namespace treadle::bridge {
namespace {

// In place of a dtype. What a module or a gradient may leave out arrives as left out.
constexpr uint8_t kUndefined = 255, kSparseCoo = 254;
// libtorch's own kernels give up beyond this many.
constexpr size_t kMaxDimensions = 64;

// By wire number. Append only: the numbers are the protocol's.
constexpr std::array kTypes = {
    at::kByte,     at::kChar,        at::kShort,         at::kInt,          at::kLong,          at::kHalf,
    at::kFloat,    at::kDouble,      at::kComplexHalf,   at::kComplexFloat, at::kComplexDouble, at::kBool,
    at::kBFloat16, at::kFloat8_e5m2, at::kFloat8_e4m3fn, at::kUInt16,       at::kUInt32,        at::kUInt64,
};

// Refused before anything is written, by what the sender can do about it. Nothing is converted silently: a
// copy from a GPU or a dense copy of a sparse tensor may be larger than the caller has any idea of.
void checkTravels(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided && tensor.layout() != at::kSparse)
    raise(invalidArgument("a tensor of layout " + std::string(c10::toString(tensor.layout()).data()) +
                          " does not travel yet; send tensor.to_dense() or its indices and values"));
  if (!tensor.device().is_cpu())
    raise(invalidArgument("a tensor on device " + tensor.device().str() + " does not travel yet; send tensor.cpu()"));
  if (tensor.is_quantized()) raise(invalidArgument("a quantized tensor does not travel; send tensor.dequantize()"));
}

// Number of bytes, with every multiplication checked: the sizes come from a peer.
size_t bytesOf(const std::vector<int64_t>& sizes, at::ScalarType type) {
  size_t bytes = c10::elementSize(type);
  bool empty = false, tooLarge = false;
  for (int64_t size : sizes) {
    if (size < 0) raise(dataLoss("a tensor has a negative size"));
    empty = empty || size == 0;
    if (size != 0) tooLarge = tooLarge || __builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes);
  }
  // A size of 0 makes the tensor empty whatever the others are; the others are multiplied all the same,
  // because libtorch computes strides from them.
  if (tooLarge || bytes > static_cast<size_t>(std::numeric_limits<int64_t>::max()))
    raise(dataLoss("a tensor has sizes too large to exist"));
  return empty ? 0 : bytes;
}

// Any other byte in a bool is undefined behaviour for whoever reads it.
void checkBools(Bytes bytes) {
  if (std::any_of(bytes.begin(), bytes.end(), [](std::byte each) { return each > std::byte{1}; }))
    raise(dataLoss("a bool tensor came with bytes other than 0 and 1"));
}

// Its elements in a row, as it is where they are: four of libtorch's operators cost more than a small call.
at::Tensor inARow(const at::Tensor& tensor) {
  // A conjugated or negated view is a flag over other elements until it is resolved.
  if (tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg()) return tensor;
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

void writeSizes(wire::Writer& writer, at::IntArrayRef sizes) {
  if (sizes.size() > kMaxDimensions) raise(invalidArgument("a tensor of over 64 dimensions does not travel"));
  writer.number(static_cast<uint8_t>(sizes.size()));
  for (int64_t size : sizes) writer.number(size);
}

std::vector<int64_t> readSizes(rpc::Decoder& decoder) {
  wire::Reader& reader = decoder.reader();
  auto dimensions = reader.number<uint8_t>();
  if (dimensions > kMaxDimensions) raise(dataLoss("a tensor of over 64 dimensions"));
  std::vector<int64_t> sizes(dimensions);
  for (int64_t& size : sizes) size = reader.number<int64_t>();
  decoder.check();
  return sizes;
}

void encodeDense(rpc::Encoder& encoder, const at::Tensor& tensor) {
  std::shared_ptr<Memory> memory = encoder.giving() ? memoryToGive(tensor) : nullptr;
  at::Tensor plain = inARow(tensor);
  encoder.writer().number(wireType(plain.scalar_type()));
  writeSizes(encoder.writer(), plain.sizes());
  Buffer buffer = Buffer::borrow(plain.const_data_ptr(), plain.nbytes());
  buffer.given = memory != nullptr;
  buffer.owner = std::move(memory);
  // Borrowed, not copied: `keep` holds the elements until the message has left, whatever becomes of the tensor.
  if (!buffer.given) encoder.keep(std::make_shared<c10::Storage>(plain.storage()));
  encoder.addBuffer(std::move(buffer));
}

at::Tensor decodeDense(rpc::Decoder& decoder, uint8_t type) {
  at::ScalarType dtype = scalarType(type);
  std::vector<int64_t> sizes = readSizes(decoder);
  size_t bytes = bytesOf(sizes, dtype);
  Buffer buffer = decoder.takeBuffer();
  // Both lengths come from the peer; a tensor over a shorter buffer would read beyond its end.
  if (buffer.sizeBytes != bytes)
    raise(dataLoss("a tensor's sizes need " + std::to_string(bytes) + " bytes and " + std::to_string(buffer.sizeBytes) +
                   " came"));
  if (dtype == at::kBool) checkBools({buffer.data, buffer.sizeBytes});
  return tensorOver(std::move(buffer), sizes, dtype);
}

void encodeSparse(rpc::Encoder& encoder, const at::Tensor& given) {
  at::NoGradGuard noGradients;
  // Without sparse dimensions there is one element at most, or more that are to be added up.
  const at::Tensor tensor = given.sparse_dim() == 0 ? given.coalesce() : given;
  encoder.writer().number(kSparseCoo);
  writeSizes(encoder.writer(), tensor.sizes());
  encoder.writer().number(static_cast<uint8_t>(tensor.is_coalesced()));
  encodeDense(encoder, tensor._indices());
  encodeDense(encoder, tensor._values());
}

at::Tensor decodeSparse(rpc::Decoder& decoder) {
  const std::vector<int64_t> sizes = readSizes(decoder);
  const auto coalesced = decoder.reader().number<uint8_t>();
  const auto part = [&] {
    auto type = decoder.reader().number<uint8_t>();
    decoder.check();
    return decodeDense(decoder, type);
  };
  at::NoGradGuard noGradients;
  // A copy: kernels trust indices, and the sender could still write to memory that is shared.
  const at::Tensor indices = part().clone(), values = part();
  if (coalesced > 1 || indices.scalar_type() != at::kLong) raise(dataLoss("a sparse tensor has no such indices"));
  // Without sparse dimensions indices are of no bytes, and their number would be bounded by nothing.
  if (indices.dim() == 2 && indices.size(0) == 0 && indices.size(1) > 1)
    raise(dataLoss("a sparse tensor without sparse dimensions has more than one element"));
  bytesOf(sizes, values.scalar_type());
  try {
    at::_validate_sparse_coo_tensor_args(indices, values, sizes, coalesced == 1);
    return at::_sparse_coo_tensor_unsafe(indices, values, sizes, values.options().layout(at::kSparse), coalesced == 1);
  } catch (const c10::Error& error) {
    raise(dataLoss(std::string("a sparse tensor came that is none: ") + error.what_without_backtrace()));
  }
}

}  // namespace

uint8_t wireType(at::ScalarType type) {
  for (size_t i = 0; i < kTypes.size(); ++i)
    if (kTypes[i] == type) return static_cast<uint8_t>(i);
  raise(invalidArgument(std::string("a tensor of dtype ") + c10::toString(type) + " does not travel"));
}

at::ScalarType scalarType(uint8_t wireType) {
  if (wireType >= kTypes.size()) raise(dataLoss("a tensor of unknown dtype " + std::to_string(wireType)));
  return kTypes[wireType];
}

void encodeTensor(rpc::Encoder& encoder, const at::Tensor& tensor) {
  // First, and also for undefined tensors: the receiver counts tensors likewise, and the history that
  // autograd looks for is on the tensor as the user gave it, not on the copy that travels.
  if (auto* hook = dynamic_cast<OutgoingTensorHook*>(encoder.hook())) hook->add(tensor);
  if (!tensor.defined()) return encoder.writer().number(kUndefined);
  checkTravels(tensor);
  tensor.layout() == at::kSparse ? encodeSparse(encoder, tensor) : encodeDense(encoder, tensor);
}

at::Tensor decodeTensor(rpc::Decoder& decoder) {
  auto type = decoder.reader().number<uint8_t>();
  decoder.check();
  at::Tensor tensor;
  if (type == kSparseCoo) {
    tensor = decodeSparse(decoder);
  } else if (type != kUndefined) {
    tensor = decodeDense(decoder, type);
  }
  if (auto* hook = dynamic_cast<IncomingTensorHook*>(decoder.hook())) hook->add(tensor);
  return tensor;
}

}  // namespace treadle::bridge

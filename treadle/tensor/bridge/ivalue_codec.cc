#include "treadle/tensor/bridge/ivalue_codec.h"

#include <ATen/core/List.h>

namespace treadle::rpc {
namespace {

// The numbers travel on the wire: never renumber.
enum class Kind : uint8_t {
  kNone = 0,
  kTensor = 1,
  kInt = 2,
  kDouble = 3,
  kBool = 4,
  kString = 5,
  kComplex = 6,
  kInts = 7,
  kDoubles = 8,
  kBools = 9,
  kTensors = 10,
  kOptionalTensors = 11,
};

template <class T>
void put(Encoder& encoder, Kind kind, const T& value) {
  encoder.writer().number(static_cast<uint8_t>(kind));
  Codec<T>::encode(encoder, value);
}

// Undefined tensors stand for what an optional one leaves out.
std::vector<at::Tensor> definedOrNot(const c10::List<std::optional<at::Tensor>>& list) {
  std::vector<at::Tensor> tensors;
  for (const std::optional<at::Tensor>& one : list.vec()) tensors.push_back(one.value_or(at::Tensor()));
  return tensors;
}
c10::IValue optionals(const std::vector<at::Tensor>& tensors) {
  c10::List<std::optional<at::Tensor>> list;
  for (const at::Tensor& one : tensors) list.push_back(one.defined() ? std::optional(one) : std::nullopt);
  return list;
}

c10::IValue decodeBools(Decoder& decoder) {
  c10::List<bool> list;
  for (bool one : Codec<std::vector<bool>>::decode(decoder)) list.push_back(one);
  return list;
}

}  // namespace

void Codec<c10::IValue>::encode(Encoder& encoder, const c10::IValue& value) {
  if (value.isNone()) return encoder.writer().number(static_cast<uint8_t>(Kind::kNone));
  if (value.isTensor()) return put(encoder, Kind::kTensor, value.toTensor());
  if (value.isInt()) return put(encoder, Kind::kInt, value.toInt());
  if (value.isDouble()) return put(encoder, Kind::kDouble, value.toDouble());
  if (value.isBool()) return put(encoder, Kind::kBool, value.toBool());
  if (value.isString()) return put(encoder, Kind::kString, value.toStringRef());
  if (value.isComplexDouble()) {
    c10::complex<double> number = value.toComplexDouble();
    return put(encoder, Kind::kComplex, std::pair(number.real(), number.imag()));
  }
  if (value.isIntList()) return put(encoder, Kind::kInts, value.toIntVector());
  if (value.isDoubleList()) return put(encoder, Kind::kDoubles, value.toDoubleVector());
  if (value.isBoolList()) return put(encoder, Kind::kBools, value.toBoolList().vec());
  if (value.isTensorList()) return put(encoder, Kind::kTensors, value.toTensorVector());
  if (value.isOptionalTensorList())
    return put(encoder, Kind::kOptionalTensors, definedOrNot(value.toOptionalTensorList()));
  raise(invalidArgument("an operator's argument of type " + value.tagKind() + " does not travel"));
}

c10::IValue Codec<c10::IValue>::decode(Decoder& decoder) {
  auto kind = static_cast<Kind>(Codec<uint8_t>::decode(decoder));
  switch (kind) {
    case Kind::kNone: return {};
    case Kind::kTensor: return Codec<at::Tensor>::decode(decoder);
    case Kind::kInt: return Codec<int64_t>::decode(decoder);
    case Kind::kDouble: return Codec<double>::decode(decoder);
    case Kind::kBool: return Codec<bool>::decode(decoder);
    case Kind::kString: return Codec<std::string>::decode(decoder);
    case Kind::kComplex: {
      auto [real, imaginary] = Codec<std::pair<double, double>>::decode(decoder);
      return c10::complex<double>(real, imaginary);
    }
    case Kind::kInts: return Codec<std::vector<int64_t>>::decode(decoder);
    case Kind::kDoubles: return Codec<std::vector<double>>::decode(decoder);
    case Kind::kBools: return decodeBools(decoder);
    case Kind::kTensors: return Codec<std::vector<at::Tensor>>::decode(decoder);
    case Kind::kOptionalTensors: return optionals(Codec<std::vector<at::Tensor>>::decode(decoder));
  }
  raise(dataLoss("an operator's argument is of unknown kind " + std::to_string(static_cast<int>(kind))));
}

}  // namespace treadle::rpc

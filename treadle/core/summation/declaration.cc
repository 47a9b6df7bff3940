#include "treadle/core/summation/declaration.h"

#include <algorithm>
#include <string>

#include "treadle/core/summation/version.h"

namespace treadle::summation {
namespace {

Status tooLarge() {
  return invalidArgument("the tensors of a summation service have more than " +
                         std::to_string(Declaration::kMostBytes >> 40) + " TiB");
}

Status checkPacking(const Declaration::Tensor& tensor) {
  TREADLE_RETURN_IF_ERROR(tensor.packing.check());
  if (!tensor.packing.isPacked()) return {};
  if (tensor.type != group::DataType::kFloat32)
    return invalidArgument("a tensor of " + std::string(nameOf(tensor.type)) +
                           " is declared as compressed, which only float32 can be");
  if (tensor.packing.elements > Declaration::kMostBytes) return tooLarge();
  if (tensor.bytes != tensor.packing.bytes())
    return invalidArgument("a compressed tensor of " + std::to_string(tensor.packing.elements) +
                           " numbers is declared with " + std::to_string(tensor.bytes) + " bytes");
  return {};
}

Status checkTensors(const std::vector<Declaration::Tensor>& tensors) {
  if (tensors.size() > UINT32_MAX) return invalidArgument("more tensors are declared than a frame can number");
  uint64_t room = Declaration::kMostBytes;
  for (const Declaration::Tensor& tensor : tensors) {
    TREADLE_RETURN_IF_ERROR(checkPacking(tensor));
    const uint64_t bytes = std::max(tensor.bytes, tensor.dataBytes());
    if (bytes > room) return tooLarge();
    room -= bytes;
    TREADLE_RETURN_IF_ERROR(checkReduces(tensor.type, group::ReduceOp::kSum));
    if (tensor.bytes % tensor.unitBytes() != 0)
      return invalidArgument("a tensor of " + std::string(nameOf(tensor.type)) + " is declared with " +
                             std::to_string(tensor.bytes) + " bytes");
  }
  return {};
}

bool isAligned(Bytes data, group::DataType type) {
  const bool isComplex = type == group::DataType::kComplex64 || type == group::DataType::kComplex128;
  return data.empty() || reinterpret_cast<uintptr_t>(data.data()) % (sizeOf(type) / (isComplex ? 2 : 1)) == 0;
}

}  // namespace

Result<Declaration> Declaration::of(std::vector<Tensor> tensors, const Shares& shares) {
  TREADLE_RETURN_IF_ERROR(checkTensors(tensors));
  std::vector<uint64_t> bytes;
  for (const Tensor& tensor : tensors) bytes.push_back(tensor.bytes);
  return Declaration{std::move(tensors), placeInOrder(bytes, shares), shares.workers.size()};
}

Status Declaration::check(size_t machines) const {
  TREADLE_RETURN_IF_ERROR(checkTensors(tensors));
  const auto isPacked = [](const Tensor& one) { return one.packing.isPacked(); };
  if (mode.isAsynchronous && std::any_of(tensors.begin(), tensors.end(), isPacked))
    return invalidArgument("tensors of an asynchronous service are compressed");
  if (mode.isAsynchronous && workers > kMostVersionWorkers)
    return invalidArgument("an asynchronous service has more workers than a version has room for");
  uint64_t most = 0;
  for (const Tensor& one : tensors) most += one.bytes / kLeastPartBytes + 1;
  if (parts.size() > most) return invalidArgument("the tensors are placed in more parts than they should be");
  size_t tensor = 0;
  uint64_t covered = 0;  // bytes of that one
  const auto skipCovered = [&] {
    for (; tensor < tensors.size() && covered == tensors[tensor].bytes; ++tensor) covered = 0;
  };
  for (const Part& part : parts) {
    skipCovered();
    const bool isNext = tensor < tensors.size() && part.tensor == tensor && part.begin == covered &&
                        part.end > part.begin && part.end <= tensors[tensor].bytes;
    if (!isNext || part.bytes() > kMostPartBytes || part.end % tensors[tensor].unitBytes() != 0 ||
        part.machine >= machines)
      return invalidArgument("the parts of the tensors are not placed as they should be");
    covered = part.end;
  }
  skipCovered();
  return tensor == tensors.size() ? Status() : invalidArgument("some tensors are not placed");
}

Status Declaration::checkData(size_t tensor, Bytes data) const {
  if (tensor >= tensors.size())
    return invalidArgument("there is no tensor " + std::to_string(tensor) + "; " + std::to_string(tensors.size()) +
                           " were declared");
  const uint64_t bytes = tensors[tensor].dataBytes();
  if (data.size() != bytes)
    return invalidArgument(textOf(tensor) + " was declared with " + std::to_string(bytes) +
                           " bytes, and its data has " + std::to_string(data.size()));
  if (!isAligned(data, tensors[tensor].type))
    return invalidArgument("the data of " + textOf(tensor) + " is not aligned for its type");
  return {};
}

std::string Declaration::textOf(size_t tensor) const {
  const std::string& name = tensors[tensor].name;
  return name.empty() ? "tensor " + std::to_string(tensor) : "'" + name + "'";
}

std::optional<size_t> Declaration::partAt(uint32_t tensor, uint64_t offset) const {
  const auto behind = std::upper_bound(parts.begin(), parts.end(), std::pair<size_t, uint64_t>(tensor, offset),
                                       [](const auto& wanted, const Part& part) {
                                         return wanted < std::pair<size_t, uint64_t>(part.tensor, part.begin);
                                       });
  if (behind == parts.begin()) return {};
  const Part& part = *(behind - 1);
  if (part.tensor != tensor || offset >= part.end) return {};
  return static_cast<size_t>(behind - 1 - parts.begin());
}

std::optional<size_t> Declaration::partOf(const Frame& frame, Machine machine) const {
  const std::optional<size_t> part = partAt(frame.tensor, frame.offset);
  return part && parts[*part].machine == machine ? part : std::nullopt;
}

std::optional<size_t> Declaration::partBegunBy(const Frame& frame, Machine machine) const {
  const std::optional<size_t> part = partOf(frame, machine);
  return part && parts[*part].begin == frame.offset ? part : std::nullopt;
}

std::pair<size_t, size_t> Declaration::partsOf(size_t tensor) const {
  const auto [begin, end] = std::equal_range(parts.begin(), parts.end(), Part{tensor},
                                             [](const Part& a, const Part& b) { return a.tensor < b.tensor; });
  return {begin - parts.begin(), end - parts.begin()};
}

}  // namespace treadle::summation

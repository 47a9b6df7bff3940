// Budget: twice the bytes of the data in fresh memory, and a pass over both when it begins and when it ends.

#include "treadle/core/group/wide_staging.h"

#include <algorithm>
#include <new>
#include <utility>

#include "treadle/core/group/half.h"

namespace treadle::group {
namespace {

constexpr size_t kNarrow = sizeof(Float16), kWide = sizeof(float);

template <class Half>
void widen(Bytes from, std::byte* to) {
  const auto* halves = reinterpret_cast<const Half*>(from.data());
  std::transform(halves, halves + from.size() / kNarrow, reinterpret_cast<float*>(to),
                 [](Half value) { return toFloat(value); });
}

template <class Half>
void narrow(Bytes from, MutableBytes to) {
  const auto* floats = reinterpret_cast<const float*>(from.data());
  std::transform(floats, floats + from.size() / kWide, reinterpret_cast<Half*>(to.data()),
                 [](float value) { return toHalf<Half>(value); });
}

}  // namespace

WideStaging::WideStaging(DataType type, Bytes input, MutableBytes output, std::shared_ptr<Staging> inner,
                         std::string owner)
    : type_(type), input_(input), output_(output), inner_(std::move(inner)), owner_(std::move(owner)) {}

Result<Staged> WideStaging::fill() {
  if (inner_) {
    const Result<Staged> narrow = inner_->fill();
    if (!narrow.ok()) return narrow.status();
    input_ = narrow->source;
    output_ = narrow->result;
  }
  const bool isInPlace = input_.data() == output_.data() && input_.size() == output_.size();
  const size_t sourceBytes = input_.size() / kNarrow * kWide, resultBytes = output_.size() / kNarrow * kWide;
  const size_t sizeBytes = sourceBytes + (isInPlace ? 0 : resultBytes);
  try {
    memory_ = allocateBuffer(sizeBytes);
  } catch (const std::bad_alloc&) {
    return resourceExhausted(owner_ + " has no memory for " + std::to_string(sizeBytes) +
                             " bytes, in which 16-bit floats are reduced");
  }
  type_ == DataType::kFloat16 ? widen<Float16>(input_, memory_.data) : widen<BFloat16>(input_, memory_.data);
  const MutableBytes all = memory_.mutableBytes(), source = all.first(sourceBytes);
  const MutableBytes result = isInPlace ? source : all.subspan(sourceBytes);
  result_ = result;
  return Staged{source, result};
}

void WideStaging::putBack() {
  type_ == DataType::kFloat16 ? narrow<Float16>(result_, output_) : narrow<BFloat16>(result_, output_);
  if (inner_) inner_->putBack();
}

}  // namespace treadle::group

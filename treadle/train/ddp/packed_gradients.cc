#include "treadle/train/ddp/packed_gradients.h"

#include <ATen/ops/cat.h>

#include <utility>

namespace treadle::ddp {

void unpackInto(const Bucket& bucket, const std::vector<size_t>& positions, const at::Tensor& flat) {
  int64_t offset = 0;
  for (const size_t position : positions) {
    const at::Tensor& view = bucket.views[position];
    view.copy_(flat.narrow(0, offset, view.numel()).view(view.sizes()));
    offset += view.numel();
  }
}

PackedGradients::PackedGradients(const Bucket& bucket, std::vector<size_t> positions)
    : bucket_(bucket), positions_(std::move(positions)) {
  if (positions_.size() == bucket_.views.size()) {
    flat_ = bucket_.flat;
    return;
  }
  std::vector<at::Tensor> parts;
  for (const size_t position : positions_) parts.push_back(bucket_.views[position].view({-1}));
  if (!parts.empty()) flat_ = at::cat(parts);
}

void PackedGradients::unpack() const {
  if (!flat_.is_same(bucket_.flat)) unpackInto(bucket_, positions_, flat_);
}

}  // namespace treadle::ddp

#include "treadle/train/ddp/replica_buffers.h"

#include <ATen/ops/equal.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstring>

#include "treadle/tensor/collective/flat.h"
#include "treadle/train/ddp/same_type.h"

namespace treadle::ddp {
namespace {

// Where it is cheap, also for NaN and for zeros with a sign.
bool haveSameBits(const at::Tensor& a, const at::Tensor& b) {
  auto isPlain = [](const at::Tensor& tensor) { return collective::isDenseOnCpu(tensor) && tensor.is_contiguous(); };
  if (!isPlain(a) || !isPlain(b)) return at::equal(a, b);
  return a.nbytes() == 0 || std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

void assign(at::Tensor& to, const at::Tensor& from) {
  if (!haveSameType(to, from)) {
    to.set_data(from.clone());
  } else if (!haveSameBits(to, from)) {
    to.copy_(from);
  }
}

// As BufferSync does it over ranks: a rounded mean would change constants a little each time.
void mergeBuffer(ClonedTensor& buffer, Buffers mode, size_t first, const std::vector<double>& shares) {
  const at::Tensor& ofFirst = buffer.ofClones[first].front();
  auto ofAll = [&](auto holds) {
    return std::ranges::all_of(buffer.ofClones, [&](const auto& own) { return holds(own.front(), ofFirst); });
  };
  if (mode != Buffers::kAverage || !ofFirst.is_floating_point() || !ofAll(haveSameType) || ofAll(haveSameBits))
    return assign(buffer.tensor, ofFirst);
  at::Tensor mean = at::zeros_like(ofFirst);
  for (size_t i = 0; i < shares.size(); ++i)
    if (shares[i] > 0) mean.add_(buffer.ofClones[i].front(), shares[i]);
  assign(buffer.tensor, mean);
}

}  // namespace

void resetBuffers(std::vector<ClonedTensor>& buffers, size_t replica) {
  for (ClonedTensor& buffer : buffers) assign(buffer.ofClones[replica].front(), buffer.tensor);
}

void mergeBuffers(std::vector<ClonedTensor>& buffers, Buffers mode, size_t first, const std::vector<double>& shares) {
  for (ClonedTensor& buffer : buffers) mergeBuffer(buffer, mode, first, shares);
}

}  // namespace treadle::ddp

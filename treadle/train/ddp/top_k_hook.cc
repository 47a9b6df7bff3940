#include "treadle/train/ddp/top_k_hook.h"

#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>

#include <algorithm>
#include <sstream>

#include "treadle/core/base/error.h"
#include "treadle/train/ddp/any_algorithm.h"
#include "treadle/train/ddp/largest_elements.h"
#include "treadle/train/ddp/packed_gradients.h"

namespace treadle {

TopKHook::TopKHook(TopKOptions options) : ErrorFeedbackHook("top_k."), options_(options) {
  if (!(options.ratio > 0 && options.ratio <= 1))
    raise(invalidArgument("TopKOptions::ratio is " + std::to_string(options.ratio) +
                          ", and has to be above 0 and at most 1"));
}

std::string TopKHook::description() const {
  std::ostringstream text;
  text.precision(17);
  text << "TopKHook of the ratio " << options_.ratio;
  return text.str();
}

void TopKHook::reset(const ProcessGroup& group, const std::vector<HookParameter>& /*parameters*/) {
  ranks_ = group.size();
}

int64_t TopKHook::countOf(const at::Tensor& gradient) const {
  const auto part = static_cast<int64_t>(options_.ratio * static_cast<double>(gradient.numel()));
  return std::max<int64_t>(1, part);
}

// Equal on all ranks. An index takes about as many bytes as an element, so beyond half of the elements nothing is
// saved.
bool TopKHook::isCompressed(const at::Tensor& gradient) const {
  return ddp::dtypeOfErrors(gradient) && ranks_ * countOf(gradient) <= gradient.numel() / 2;
}

// What this rank sends of these gradients, one after the other, as a sparse tensor. Holds back the rest.
at::Tensor TopKHook::selected(const ddp::Bucket& bucket, const std::vector<size_t>& positions) {
  std::vector<at::Tensor> indexes, values;
  int64_t offset = 0;
  for (const size_t position : positions) {
    const at::Tensor& gradient = bucket.views[position];
    at::Tensor sum = memory().withError(bucket.parameters[position], gradient).view({-1});
    const at::Tensor largest = ddp::indexesOfLargest(sum, countOf(gradient));
    values.push_back(sum.index_select(0, largest));
    indexes.push_back(largest + offset);
    memory().hold(bucket.parameters[position], sum.index_fill_(0, largest, 0).view(gradient.sizes()));
    offset += gradient.numel();
  }
  const at::Tensor all = at::cat(values);
  return at::_sparse_coo_tensor_unsafe(at::cat(indexes).unsqueeze(0), all, {offset}, all.options().layout(at::kSparse),
                                       /*is_coalesced=*/true);
}

Reduction TopKHook::reduce(Exchange& exchange, const ddp::Bucket& bucket) {
  std::vector<size_t> dense, sparse;
  for (size_t position = 0; position < bucket.views.size(); ++position)
    (isCompressed(bucket.views[position]) ? sparse : dense).push_back(position);
  addErrors(bucket, dense);
  ddp::PackedGradients plain(bucket, dense);
  if (!plain.isEmpty()) exchange.add(allReduce(exchange.group(), plain.flat(), ReduceOp::kAverage));
  Future<at::Tensor> sum;
  if (!sparse.empty()) {
    sum = sparseAllReduce(ddp::byAnyAlgorithm(exchange.group()), selected(bucket, sparse), ReduceOp::kAverage);
    exchange.add(sum);
  }
  co_await exchange.round();
  plain.unpack();
  if (sum.valid()) ddp::unpackInto(bucket, sparse, sum.wait().to_dense());
  noteAverage(bucket.flat);
}

}  // namespace treadle

#include "treadle/train/ddp/sparse_exchange.h"

#include <ATen/ops/_sparse_coo_tensor_with_dims.h>
#include <ATen/ops/_validate_sparse_coo_tensor_args.h>

#include <sstream>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/core/group/sparse.h"
#include "treadle/tensor/collective/collectives.h"
#include "treadle/train/ddp/any_algorithm.h"
#include "treadle/train/ddp/same_type.h"

namespace treadle::ddp {
namespace {

Status checkShape(const at::Tensor& gradient) {
  group::SparseShape shape{.sizes = {}, .sparseDims = static_cast<size_t>(gradient.sparse_dim())};
  shape.sizes.assign(gradient.sizes().begin(), gradient.sizes().end());
  return shape.validate();
}

Status checkIsLike(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (haveSameType(gradient, parameter) && (gradient.layout() == at::kStrided || gradient.is_sparse())) return {};
  std::ostringstream text;
  text << "it is a tensor of " << gradient.scalar_type() << " " << gradient.sizes() << " with layout "
       << gradient.layout() << " on " << gradient.device() << ", and the parameter one of " << parameter.scalar_type()
       << " " << parameter.sizes() << " on " << parameter.device();
  return invalidArgument(text.str());
}

Status checkRows(const at::Tensor& gradient) try {
  at::_validate_sparse_coo_tensor_args(gradient._indices(), gradient._values(), gradient.sizes());
  return {};
} catch (const c10::Error& error) {
  return invalidArgument(error.what_without_backtrace());
}

}  // namespace

SparseExchange::SparseExchange(const ParameterList& list, ProcessGroup group)
    : list_(list), group_(std::move(group)), isExpected_(list_.trained().size()) {}

void SparseExchange::begin() {
  averages_.clear();
  sentBytes_ = 0;
}

Status SparseExchange::check(size_t index, const OwnGradient& own) const {
  TREADLE_RETURN_IF_ERROR(check(index, own.ofPass));
  return check(index, own.earlier);
}

// All that can be wrong with a gradient is found here, where the pass can still fail on all ranks.
Status SparseExchange::check(size_t index, const at::Tensor& gradient) const {
  if (!gradient.defined()) return {};
  Status ok = checkIsLike(parameter(index), gradient);
  if (ok.ok() && gradient.is_sparse()) ok = checkShape(gradient);
  if (ok.ok() && gradient.is_sparse()) ok = checkRows(gradient);
  return ok.ok() ? ok : ok.withContext("the gradient of parameter " + list_.nameOf(index));
}

bool SparseExchange::learn(const ExactChannel& channel) {
  bool isOther = false;
  for (size_t index = 0; index < isExpected_.size(); ++index) {
    if (!channel.used(index) || isExpected_[index] == !channel.isDense(index)) continue;
    isExpected_[index] = !channel.isDense(index);
    isOther = true;
  }
  return isOther;
}

at::Tensor SparseExchange::noRows(size_t index, int64_t sparseDims) const {
  const at::Tensor& like = parameter(index);
  return at::_sparse_coo_tensor_with_dims(sparseDims, like.dim() - sparseDims, like.sizes(),
                                          like.options().requires_grad(false).layout(at::kSparse));
}

Future<void> SparseExchange::sumRows(size_t index, int64_t sparseDims, const OwnGradient& own) {
  const at::Tensor rows = own.isDefined() ? own.sparse() : noRows(index, sparseDims);
  sentBytes_ += rows._values().nbytes();
  return keep(index, sparseAllReduce(byAnyAlgorithm(group_), rows, ReduceOp::kAverage));
}

Future<void> SparseExchange::sum(size_t index, at::Tensor dense) {
  sentBytes_ += dense.nbytes();
  return keep(index, allReduce(group_, dense, ReduceOp::kAverage).then([dense] { return dense; }));
}

Future<void> SparseExchange::keep(size_t index, Future<at::Tensor> sum) {
  averages_.push_back({index, sum});
  return sum.then([](const at::Tensor&) {});
}

// mul_ of a sparse tensor would forget that it is coalesced.
std::vector<size_t> SparseExchange::put(GradientStore& store, const std::function<bool(size_t)>& isMade,
                                        double factor) {
  std::vector<size_t> averaged;
  for (Average& one : std::exchange(averages_, {})) {
    at::Tensor average = one.sum.wait();
    one.sum = {};
    at::Tensor values = average.is_sparse() ? average._values() : average;
    if (factor != 1) values.mul_(factor);
    store.put(average, parameter(one.parameter), isMade(one.parameter));
    averaged.push_back(one.parameter);
  }
  return averaged;
}

}  // namespace treadle::ddp

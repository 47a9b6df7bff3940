#include "treadle/train/ddp/power_sgd_hook.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/tensor/optim/unscale.h"
#include "treadle/train/ddp/any_algorithm.h"
#include "treadle/train/ddp/hash128.h"
#include "treadle/train/ddp/low_rank.h"
#include "treadle/train/ddp/packed_gradients.h"

namespace treadle {

// The compressed parameters of one bucket in one pass; none in the first passes. Out variants of products alone: under
// an Autocast that is still alive, libtorch would compute the others in 16 bits.
class PowerSgdHook::BucketPass {
 public:
  BucketPass(PowerSgdHook& hook, const ddp::Bucket& bucket);

  bool isEmpty() const { return matrices_.empty(); }
  const std::vector<size_t>& uncompressed() const { return uncompressed_; }
  // All P^T, which are to be averaged, and then all Q_r^T.
  at::Tensor& p() { return p_; }
  at::Tensor& q() { return q_; }
  // The average of P has come.
  void makeQ();
  // And that of Q.
  void finish();

 private:
  struct Matrix {
    size_t parameter = 0, position = 0;
    at::Tensor sum;   // [n, m]: D_r
    at::Tensor p, q;  // [k, n] and [k, m], within p_ and q_
    bool isInfinite = false;
  };

  void add(size_t position);
  at::Tensor partOf(at::Tensor& all, int64_t& offset, int64_t rows, int64_t columns) const;

  PowerSgdHook& hook_;
  const ddp::Bucket& bucket_;
  std::vector<Matrix> matrices_;
  std::vector<size_t> uncompressed_;
  at::Tensor p_, q_;
};

PowerSgdHook::BucketPass::BucketPass(PowerSgdHook& hook, const ddp::Bucket& bucket) : hook_(hook), bucket_(bucket) {
  int64_t ofP = 0, ofQ = 0;
  for (size_t position = 0; position < bucket.parameters.size(); ++position) {
    const Shape& shape = hook.factors_[bucket.parameters[position]].shape;
    if (shape.k == 0 || hook.passes_ <= hook.options_.startAfter) {
      uncompressed_.push_back(position);
      continue;
    }
    add(position);
    ofP += shape.k * shape.n;
    ofQ += shape.k * shape.m;
  }
  if (isEmpty()) return;
  p_ = at::empty({ofP}, matrices_.front().sum.options());
  q_ = at::empty({ofQ}, p_.options());
  ofP = ofQ = 0;
  for (Matrix& matrix : matrices_) {
    const Shape& shape = hook.factors_[matrix.parameter].shape;
    matrix.p = partOf(p_, ofP, shape.k, shape.n);
    matrix.q = partOf(q_, ofQ, shape.k, shape.m);
    at::mm_out(matrix.p, hook.factors_[matrix.parameter].q, matrix.sum.t());
  }
}

void PowerSgdHook::BucketPass::add(size_t position) {
  const size_t parameter = bucket_.parameters[position];
  const Shape& shape = hook_.factors_[parameter].shape;
  const at::Tensor sum = hook_.memory().withError(parameter, bucket_.views[position]);
  Matrix& matrix = matrices_.emplace_back();
  matrix.parameter = parameter;
  matrix.position = position;
  matrix.sum = sum.view({shape.n, shape.m});
}

at::Tensor PowerSgdHook::BucketPass::partOf(at::Tensor& all, int64_t& offset, int64_t rows, int64_t columns) const {
  at::Tensor part = all.narrow(0, offset, rows * columns).view({rows, columns});
  offset += rows * columns;
  return part;
}

// All ranks have the same bits of P, so they agree about infinities, and take part in the average of Q all the same.
void PowerSgdHook::BucketPass::makeQ() {
  for (Matrix& matrix : matrices_) {
    matrix.isInfinite = !optim::isFinite(matrix.p);
    if (matrix.isInfinite) {
      matrix.q.zero_();
      continue;
    }
    ddp::orthonormalize(matrix.p);
    at::mm_out(matrix.q, matrix.p, matrix.sum);
    hook_.memory().hold(matrix.parameter, matrix.sum.addmm_(matrix.p.t(), matrix.q, 1, -1));
  }
}

void PowerSgdHook::BucketPass::finish() {
  for (const Matrix& matrix : matrices_) {
    const at::Tensor& view = bucket_.views[matrix.position];
    if (matrix.isInfinite) {
      view.fill_(std::numeric_limits<double>::infinity());
      continue;
    }
    const bool hasItsDtype = view.scalar_type() == matrix.p.scalar_type();
    at::Tensor product = hasItsDtype ? view.view(matrix.sum.sizes()) : at::empty(matrix.sum.sizes(), p_.options());
    ddp::multiplyTransposed(matrix.p, matrix.q, product);
    if (!hasItsDtype) view.copy_(product.view(view.sizes()));
    at::Tensor next = matrix.q.clone();
    if (optim::isFinite(next)) ddp::completeRandomly(next, hook_.seedOf(matrix.parameter));
    hook_.factors_[matrix.parameter].next = std::move(next);
  }
}

PowerSgdHook::PowerSgdHook(PowerSgdOptions options) : ErrorFeedbackHook("power_sgd."), options_(options) {
  if (options.rank < 1 || options.startAfter < 0 || !(options.minCompressionRate >= 0) ||
      !std::isfinite(options.minCompressionRate))
    raise(
        invalidArgument("PowerSgdOptions: rank must be at least 1, startAfter at least 0, and minCompressionRate at "
                        "least 0 and finite"));
}

std::string PowerSgdHook::description() const {
  ddp::Hash128 hash;
  for (const Factor& factor : factors_)
    if (factor.q.defined())
      hash = ddp::hashed(hash, {static_cast<const std::byte*>(factor.q.const_data_ptr()), factor.q.nbytes()});
  std::ostringstream text;
  text.precision(17);
  text << "PowerSgdHook of rank " << options_.rank << ", after " << options_.startAfter
       << " passes, for matrices that become more than " << options_.minCompressionRate
       << " times smaller, with the seed " << options_.seed << "; in pass " << passes_ << " with the hash "
       << ddp::inHex(hash) << " of its Q";
  return text.str();
}

PowerSgdHook::Shape PowerSgdHook::shapeOf(const at::Tensor& parameter) const {
  if (parameter.dim() < 2 || parameter.numel() == 0 || !ddp::dtypeOfErrors(parameter)) return {};
  const int64_t n = parameter.size(0), m = parameter.numel() / n;
  const int64_t k = std::min({options_.rank, n, m});
  const double sent = static_cast<double>(n + m) * static_cast<double>(k) * options_.minCompressionRate;
  return sent < static_cast<double>(parameter.numel()) ? Shape{n, m, k} : Shape{};
}

uint64_t PowerSgdHook::seedOf(size_t parameter) const {
  const std::array<uint64_t, 2> place = {parameter, static_cast<uint64_t>(passes_)};
  return ddp::hashed({options_.seed, 0}, std::as_bytes(std::span(place))).first;
}

void PowerSgdHook::reset(const ProcessGroup& /*group*/, const std::vector<HookParameter>& parameters) {
  names_.clear();
  factors_.clear();
  passes_ = 0;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& parameter = parameters[i].tensor;
    Factor factor;
    factor.shape = shapeOf(parameter);
    if (factor.shape.k > 0) {
      factor.q = at::zeros({factor.shape.k, factor.shape.m}, *ddp::dtypeOfErrors(parameter));
      ddp::completeRandomly(factor.q, seedOf(i));
    }
    names_.push_back(parameters[i].name);
    factors_.push_back(std::move(factor));
  }
}

void PowerSgdHook::saveRest(OptimizerState& state, const std::string& prefix) const {
  state[prefix + "passes"] = optim::asTensor(passes_);
  for (size_t i = 0; i < factors_.size(); ++i)
    if (const at::Tensor& q = factors_[i].q; q.defined())
      state[prefix + "q." + names_[i]] = q.t().clone(at::MemoryFormat::Contiguous);
}

void PowerSgdHook::loadRest(OptimizerState& state, const std::string& prefix) {
  passes_ = optim::take(state, prefix + "passes", int64_t{});
  for (size_t i = 0; i < factors_.size(); ++i)
    if (at::Tensor& q = factors_[i].q; q.defined()) {
      const std::string name = prefix + "q." + names_[i];
      q = optim::takeLike(state, name, q.t()).t().contiguous();
      if (!optim::isFinite(q)) raise(invalidArgument("'" + name + "' of the state is not finite"));
    }
}

void PowerSgdHook::agree(const ProcessGroup& group) {
  std::vector<at::Tensor> values = {optim::asTensor(passes_)};
  for (const Factor& factor : factors_)
    if (factor.q.defined()) values.push_back(factor.q.clone());
  std::vector<Future<void>> broadcasts;
  const ProcessGroup chosen = ddp::byAnyAlgorithm(group);
  for (at::Tensor& value : values) broadcasts.push_back(broadcast(chosen, value, 0));
  whenAll(std::move(broadcasts)).wait();
  passes_ = values.front().item<int64_t>();
  size_t next = 1;
  for (Factor& factor : factors_)
    if (factor.q.defined()) factor.q = std::move(values[next++]);
}

void PowerSgdHook::beginRest() {
  ++passes_;
  for (Factor& factor : factors_) factor.next.reset();
}

void PowerSgdHook::commitRest(const std::vector<bool>& isUsed) {
  for (size_t i = 0; i < factors_.size(); ++i)
    if (isUsed[i] && factors_[i].next.defined()) factors_[i].q = std::move(factors_[i].next);
}

Reduction PowerSgdHook::reduce(Exchange& exchange, const ddp::Bucket& bucket) {
  BucketPass pass(*this, bucket);
  addErrors(bucket, pass.uncompressed());
  ddp::PackedGradients plain(bucket, pass.uncompressed());
  if (!plain.isEmpty()) exchange.add(allReduce(exchange.group(), plain.flat(), ReduceOp::kAverage));
  if (!pass.isEmpty()) exchange.add(allReduce(exchange.group(), pass.p(), ReduceOp::kAverage));
  co_await exchange.round();
  plain.unpack();
  if (!pass.isEmpty()) {
    pass.makeQ();
    co_await exchange.round(allReduce(exchange.group(), pass.q(), ReduceOp::kAverage));
    pass.finish();
  }
  noteAverage(bucket.flat);
}

}  // namespace treadle

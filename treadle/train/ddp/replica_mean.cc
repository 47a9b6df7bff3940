#include "treadle/train/ddp/replica_mean.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>
#include <sstream>

#include "treadle/core/base/error.h"
#include "treadle/tensor/collective/collectives.h"
#include "treadle/train/ddp/any_algorithm.h"

namespace treadle::ddp {
namespace {

// With zeros where this rank has none, or has not trained. libtorch's SGD keeps a momentum as sparse as the gradient
// was.
void fillPlace(at::Tensor& place, const at::Tensor& own, bool counts) {
  if (!counts || !own.defined()) {
    place.zero_();
  } else {
    place.copy_(own.is_sparse() ? own.to_dense() : own);
  }
}

// In place where there is a place: a program may know the tensor.
void putMean(at::Tensor& own, const at::Tensor& mean) {
  if (own.defined() && !own.is_sparse()) {
    own.copy_(mean);
  } else {
    own = mean.clone();
  }
}

}  // namespace

ReplicaMean::ReplicaMean(const torch::nn::Module& module, Buffers buffers, BucketLimits limits)
    : list_(module), buffers_(module, buffers), limits_(limits) {}

std::vector<std::string> ReplicaMean::linesOf(const OptimizerTensors& optimizer) {
  std::vector<std::string> lines;
  for (const at::Tensor& parameter : optimizer.parameters()) {
    std::ostringstream line;
    line << "the state of a " << optimizer.name() << " for a parameter of " << c10::toString(parameter.scalar_type())
         << " " << parameter.sizes();
    lines.push_back(line.str());
  }
  return lines;
}

Result<group::Algorithm> ReplicaMean::algorithm(const ProcessGroup& group, const OptimizerTensors* added) const {
  std::vector<at::Tensor> averaged = list_.trained();
  const auto include = [&](const OptimizerTensors& optimizer) {
    for (size_t parameter = 0; parameter < optimizer.parameters().size(); ++parameter)
      averaged.insert(averaged.end(), optimizer.kept(parameter).tensors.size(), optimizer.parameters()[parameter]);
  };
  for (const auto& optimizer : optimizers_) include(*optimizer);
  if (added != nullptr) include(*added);
  return algorithmOfAverages(group, averaged, limits_);
}

Status ReplicaMean::checkUnchanged() const {
  TREADLE_RETURN_IF_ERROR(list_.checkUnchanged());
  return buffers_.checkUnchanged();
}

// Appends the tensors that optimizers keep on some rank to the values. Nothing is sent where none is averaged.
std::vector<ReplicaMean::OfParameter> ReplicaMean::survey(const ProcessGroup& group, std::vector<Value>& values) const {
  std::vector<OfParameter> all;
  std::vector<int64_t> marks;  // 1 for each tensor that there is, and counts
  for (const auto& optimizer : optimizers_)
    for (size_t parameter = 0; parameter < optimizer->parameters().size(); ++parameter) {
      OfParameter& one = all.emplace_back();
      one.optimizer = optimizer.get();
      one.parameter = parameter;
      one.kept = optimizer->kept(parameter);
      for (const at::Tensor& tensor : one.kept.tensors) marks.push_back(tensor.defined() ? 1 : 0);
      marks.insert(marks.end(), one.kept.counts.begin(), one.kept.counts.end());
    }
  if (marks.empty()) return {};
  at::Tensor ofAll = at::empty({static_cast<int64_t>(marks.size())}, at::kLong);
  std::copy(marks.begin(), marks.end(), ofAll.data_ptr<int64_t>());
  allReduce(byAnyAlgorithm(group), ofAll, ReduceOp::kMax).wait();
  const int64_t* mark = ofAll.const_data_ptr<int64_t>();
  for (OfParameter& one : all) {
    for (const at::Tensor& tensor : one.kept.tensors) {
      const bool isSomewhere = *mark++ != 0;
      one.isKept = one.isKept || isSomewhere;
      one.values.push_back(isSomewhere ? std::optional(values.size()) : std::nullopt);
      if (isSomewhere) values.push_back({one.optimizer->parameters()[one.parameter], tensor});
    }
    for (int64_t& count : one.kept.counts) {
      count = *mark++;
      one.isKept = one.isKept || count != 0;
    }
  }
  return all;
}

void ReplicaMean::make(const ProcessGroup& group, const Shares& shares) {
  const at::NoGradGuard noGrad;
  std::vector<Value> values;
  for (const at::Tensor& parameter : list_.trained()) values.push_back({parameter, parameter});
  std::vector<OfParameter> ofParameters = survey(group, values);
  std::vector<Bucket> packs = emptyPacks(values);
  const bool counts = shares.ofRanks[static_cast<size_t>(group.rank())] > 0;
  Operations operations;
  for (Bucket& pack : packs) {
    for (size_t position = 0; position < pack.parameters.size(); ++position)
      fillPlace(pack.views[position], values[pack.parameters[position]].own, counts);
    operations.push_back(allReduce(group, pack.flat, ReduceOp::kAverage));
  }
  buffers_.begin(group, shares, operations);
  throwIfError(waitForEnd(operations));
  throwIfError(firstFailure(operations));
  for (Bucket& pack : packs) {
    if (shares.factor != 1) pack.flat.mul_(shares.factor);
    for (size_t position = 0; position < pack.parameters.size(); ++position)
      putMean(values[pack.parameters[position]].own, pack.views[position]);
  }
  giveToOptimizers(ofParameters, values);
  buffers_.put();
}

// In several packs, so that the first are on their way while others are filled.
std::vector<Bucket> ReplicaMean::emptyPacks(const std::vector<Value>& values) const {
  std::vector<at::Tensor> shapes;
  for (const Value& value : values) shapes.push_back(value.parameter);
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  return makeBuckets(shapes, BucketPlan(shapes, order, limits_));
}

void ReplicaMean::giveToOptimizers(std::vector<OfParameter>& ofParameters, const std::vector<Value>& values) {
  for (OfParameter& one : ofParameters) {
    if (!one.isKept) continue;
    for (size_t i = 0; i < one.values.size(); ++i)
      if (one.values[i]) one.kept.tensors[i] = values[*one.values[i]].own;
    one.optimizer->keep(one.parameter, std::move(one.kept));
  }
}

}  // namespace treadle::ddp

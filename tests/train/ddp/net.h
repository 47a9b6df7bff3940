#pragma once
// What the tests of DistributedDataParallel train: a small network in float64, and its data by rank and step.

#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <treadle/autograd.h>
#include <treadle/ddp.h>

#include <cstring>
#include <functional>
#include <stdexcept>

#include "tests/support/tensor_job.h"
#include "treadle/tensor/collective/collectives.h"
#include "treadle/train/ddp/exact_channel.h"

namespace treadle::test::ddp_test {

inline at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  return at::empty(sizes, at::kDouble).normal_(0, 1, at::make_generator<at::CPUGeneratorImpl>(seed));
}

// Two layers, one that forward leaves out when told so, and a buffer.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(uint64_t seed) : seed(seed) {
    first = add("first", {5, 7});
    bias = add("bias", {7});
    skipped = add("skipped", {7, 7});
    last = add("last", {7, 3});
    offset = register_buffer("offset", random({3}, this->seed));
  }
  at::Tensor add(const std::string& name, at::IntArrayRef sizes) {
    return register_parameter(name, random(sizes, seed++));
  }
  at::Tensor forward(const at::Tensor& input, bool skip) {
    at::Tensor hidden = at::tanh(input.mm(first) + bias);
    if (!skip) hidden = at::tanh(hidden.mm(skipped));
    return hidden.mm(last) + offset;
  }
  uint64_t seed;
  at::Tensor first, bias, skipped, last, offset;
};
TORCH_MODULE(Net);

inline std::vector<at::Tensor> copiesOf(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) copies.push_back(tensor.detach().clone());
  return copies;
}

constexpr int64_t kBatch = 4;

inline at::Tensor inputOf(int rank, int step) {
  return random({kBatch, 5}, static_cast<uint64_t>(900 + 10 * step + rank));
}

// Of a few bytes, so that parameters fall into several buckets.
inline DdpOptions smallBuckets() { return {.buckets = {.firstBytes = 64, .bytes = 300}}; }

inline std::vector<std::string> ranks(int size) {
  std::vector<std::string> names;
  for (int rank = 0; rank < size; ++rank) names.push_back("rank" + std::to_string(rank));
  return names;
}

// Takes part by hand in a pass over these parameters on another rank, with zeros: those of `order`, which fill buckets
// so, after as many averages. In a first pass there is room for rank 0's order. Calls `sent` after each bucket.
inline void answerPassInOrder(
    const ProcessGroup& group, const std::vector<at::Tensor>& parameters, const std::vector<size_t>& order,
    uint64_t averages, const DdpOptions& options, const std::function<void()>& sent = [] {}) {
  const ddp::BucketPlan buckets(parameters, order, options.buckets);
  for (const std::vector<size_t>& bucket : buckets.buckets()) {
    int64_t elements = 0;
    for (size_t index : bucket) elements += parameters[index].numel();
    at::Tensor flat = at::zeros({elements}, parameters[bucket.front()].options().requires_grad(false));
    allReduce(group, flat, ReduceOp::kAverage).wait();
    sent();
  }
  ddp::ExactChannel channel(group, parameters.size(), buckets.buckets().size(), /*carriesOrder=*/averages == 0);
  channel.send({.active = true, .averages = averages}).wait();
}

// The same in a first pass.
inline void answerPass(
    const ProcessGroup& group, const std::vector<at::Tensor>& parameters, const DdpOptions& options,
    const std::function<void()>& sent = [] {}) {
  answerPassInOrder(group, parameters, ddp::reverseOrder(parameters.size()), /*averages=*/0, options, sent);
}

// Of contiguous tensors.
inline bool haveEqualBits(const at::Tensor& a, const at::Tensor& b) {
  return a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() &&
         std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
}

struct Broken : torch::autograd::Function<Broken> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) { return input.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*, torch::autograd::variable_list) {
    throw std::runtime_error("this node fails");
  }
};

}  // namespace treadle::test::ddp_test

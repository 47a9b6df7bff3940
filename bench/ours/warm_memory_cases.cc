// What computing costs with the memory that operations take for their results (JoinOptions::warmMemory): at the callee,
// ten calls of 200 pointwise operations at once; here, training steps of a model whose activations are large.
#include <ATen/ops/rand.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "bench/ours/cases.h"

namespace bench {
namespace {

using treadle::Future;
using treadle::Worker;

constexpr int64_t kLargeWidth = 4096, kLargeBatch = 2048;
constexpr int kSteps = 4;

// Once: it takes long, and the first time counts too.
std::vector<Series> tenPointwise(Worker& worker, int) {
  at::Tensor tensor = at::rand({40 * kFloatsPerMegabyte});
  return {timed(
      0, 1, [] {},
      [&] {
        std::vector<Future<at::Tensor>> futures;
        for (int i = 0; i < 10; ++i) futures.push_back(worker.async<&pointwise>(kServer, tensor));
        for (auto& future : futures) future.wait();
      })};
}

torch::nn::Sequential makeModel() {
  torch::nn::Sequential model;
  for (int layer = 0; layer < 3; ++layer) {
    model->push_back(torch::nn::Linear(kLargeWidth, kLargeWidth));
    model->push_back(torch::nn::GELU());
    model->push_back(torch::nn::Tanh());
  }
  return model;
}

// Forward and backward of three layers, in this process alone: a batch's activations are 32 MiB each.
std::vector<Series> largeActivations(Worker&, int) {
  torch::nn::Sequential model = makeModel();
  at::Tensor batch = at::rand({kLargeBatch, kLargeWidth});
  resetPeak();
  Series steps =
      timed(1, kSteps, [&] { model->zero_grad(); }, [&] { model->forward(batch).square().mean().backward(); });
  return {steps};
}

std::vector<Series> peakOfLargeActivations(Worker& worker, int repetitions) {
  largeActivations(worker, repetitions);
  return {{"", "bytes", {static_cast<double>(peakBytes())}}};
}

}  // namespace

void addWarmMemoryCases(Cases& cases) {
  cases["pointwise_10x40MB"] = &tenPointwise;
  cases["train_large_activations"] = &largeActivations;
  cases["train_large_activations_peak"] = &peakOfLargeActivations;
}

}  // namespace bench

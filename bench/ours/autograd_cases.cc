// Distributed autograd: two linear layers, the second one at the other worker, as in table 2 of the paper on PyTorch
// RPC (Damania et al., MLSys 2023), and a chain of calls.
#include <ATen/ops/rand.h>
#include <torch/csrc/autograd/autograd.h>

#include "bench/ours/cases.h"
#include "treadle/autograd.h"
#include "treadle/tensor/autograd/interceptor.h"

namespace bench {
namespace {

using treadle::AutogradContext;
using treadle::AutogradMode;
using treadle::Worker;

constexpr int kWarmUp = 10;
constexpr int64_t kBatch = 32;
constexpr int kCallsOfAChain = 50;  // there and back: two hops each

// What it takes to run the layers forward: both here, the second one there without gradients, and with them. Ours is
// the last less the first, repetition by repetition.
std::vector<Series> forwardOverhead(Worker& worker, int repetitions) {
  Layer here, there;
  at::Tensor input = at::rand({kBatch, Layer::kWidth});
  Series overhead{"", "us", {}}, norpc{"", "us", {}, "autograd_norpc_fwd"}, nograd{"", "us", {}, "autograd_nograd_fwd"},
      grad{"", "us", {}, "autograd_grad_fwd"};
  for (int i = -kWarmUp; i < 5 * repetitions; ++i) {
    double local = timeOf([&] { there.forward(here.forward(input)); });
    double without = timeOf([&] {
      at::NoGradGuard noGradients;
      worker.call<&secondLayer>(kServer, here.forward(input));
    });
    std::optional<AutogradContext> context;
    double with = timeOf([&] {
      context.emplace(worker);
      worker.call<&secondLayer>(kServer, here.forward(input));
    });
    if (i < 0) continue;
    norpc.values.push_back(local);
    nograd.values.push_back(without);
    grad.values.push_back(with);
    overhead.values.push_back(with - local);
  }
  return {overhead, norpc, nograd, grad};
}

// The same backward.
std::vector<Series> backwardOverhead(Worker& worker, int repetitions) {
  Layer here, there;
  at::Tensor input = at::rand({kBatch, Layer::kWidth});
  Series overhead{"", "us", {}}, norpc{"", "us", {}, "autograd_norpc_bwd"}, grad{"", "us", {}, "autograd_grad_bwd"};
  for (int i = -kWarmUp; i < 5 * repetitions; ++i) {
    at::Tensor loss = there.forward(here.forward(input)).sum();
    double local = timeOf([&] { torch::autograd::backward({loss}, {}); });
    AutogradContext context(worker);
    loss = worker.call<&secondLayer>(kServer, here.forward(input)).sum();
    double with = timeOf([&] { context.backward({loss}); });
    if (i < 0) continue;
    norpc.values.push_back(local);
    grad.values.push_back(with);
    overhead.values.push_back(with - local);
  }
  return {overhead, norpc, grad};
}

void chain(Worker& worker, AutogradMode mode) {
  AutogradContext context(worker, {mode});
  at::Tensor x = at::rand({kBatch}).requires_grad_(), y = x;
  for (int i = 0; i < kCallsOfAChain; ++i) y = worker.call<&twice>(kServer, y);
  context.backward({y.sum()});
}

std::vector<Series> chainOfCalls(Worker& worker, int repetitions) {
  return {timed(kWarmUp, repetitions, [] {}, [&] { chain(worker, AutogradMode::kSmart); })};
}

std::vector<Series> smartAndFast(Worker& worker, int repetitions) {
  const treadle::autograd::Contexts& contexts = treadle::autograd::interceptorOf(worker).contexts();
  const auto before = contexts.lineage();
  std::vector<Series> both = alternated(
      "fast", kWarmUp, 3 * repetitions, [] {}, [&] { chain(worker, AutogradMode::kSmart); },
      [&] { chain(worker, AutogradMode::kFast); });
  const auto after = contexts.lineage();
  auto messages = static_cast<double>(after.messages - before.messages);
  both.push_back({"lineage_per_message", "bytes", {static_cast<double>(after.bytes - before.bytes) / messages}, ""});
  return both;
}

}  // namespace

void addAutogradCases(Cases& cases) {
  cases["autograd_forward_overhead"] = &forwardOverhead;
  cases["autograd_backward_overhead"] = &backwardOverhead;
  cases["autograd_chain_100"] = &chainOfCalls;
  cases["autograd_smart"] = &smartAndFast;
}

}  // namespace bench

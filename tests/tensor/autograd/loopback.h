#pragma once
// Several workers' graphs of one context in one process, joined by a network in memory that delivers gradient
// messages one by one, in an order drawn from a seed. One thread uses a LoopbackJob at a time.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <vector>

#include "treadle/tensor/autograd/context_graph.h"
#include "treadle/tensor/autograd/leaf_slots.h"
#include "treadle/tensor/autograd/pass.h"

namespace treadle::autograd {

class LoopbackJob;

class LoopbackWorker final : public GradientSink {
 public:
  LoopbackWorker(LoopbackJob& job, int rank, int64_t contextId, AutogradMode mode)
      : graph(std::make_shared<ContextGraph>(contextId, rank, mode)), job_(job), rank_(rank) {}

  Status sendGradients(Pass& pass, int rank, std::vector<MessageGradients> messages) override;
  void onIdle(Pass& pass) override;

  at::Tensor gradient(const at::Tensor& leaf) const { return graph->gradient(leaf); }

  std::shared_ptr<ContextGraph> graph;
  std::shared_ptr<Pass> pass;
  int idleCalls = 0;

 private:
  LoopbackJob& job_;
  int rank_;
};

class LoopbackJob {
 public:
  LoopbackJob(int workers, int64_t contextId, uint64_t seed = 1, LeafSlots* slots = nullptr,
              AutogradMode mode = AutogradMode::kFast);

  LoopbackWorker& worker(int rank) { return *workers_.at(static_cast<size_t>(rank)); }

  // The forward pass: what worker `to` holds after `from` sent it these tensors. Copies, as a network makes.
  std::vector<at::Tensor> send(int from, int to, const std::vector<at::Tensor>& tensors, std::string function = "f");
  at::Tensor send(int from, int to, const at::Tensor& tensor);

  // Runs a whole pass; the first failure anywhere, or OK. Every worker's pass is finished and dropped.
  Status backward(int rank, std::vector<Root> roots, bool retainGraph = false);

  // The steps of it. start(): every worker makes its pass, in SMART mode with what takes part; deliverAll(): until no
  // message is left.
  Status start(int rank, std::vector<Root> roots, bool retainGraph = false);
  Status deliverAll();
  Status finish();

  size_t delivered() const { return delivered_; }  // messages of the forward pass that got their gradients
  size_t mails() const { return mails_; }          // in which these came

 private:
  friend class LoopbackWorker;
  struct Mail {
    int to;
    std::vector<MessageGradients> messages;
  };
  Status deliverOne();

  LeafSlots ownSlots_;
  LeafSlots& slots_;
  std::vector<std::unique_ptr<LoopbackWorker>> workers_;
  std::vector<Mail> mail_;
  std::mt19937_64 random_;
  size_t delivered_ = 0, mails_ = 0;
};

// |a - b| <= 1e-10 * the largest |b|, or 1e-14, and the same shape. Undefined equals undefined or zeros.
::testing::AssertionResult closeTo(const at::Tensor& actual, const at::Tensor& expected);

// A leaf of float64 random numbers that requires grad.
at::Tensor parameter(at::IntArrayRef sizes);

// Three float64 numbers of this value.
at::Tensor full(double value);

// Sets the hook that runs each time after a gradient was accumulated into the leaf's `.grad`.
void onAccumulated(const at::Tensor& leaf, std::function<void(const at::Tensor&)> hook);

}  // namespace treadle::autograd

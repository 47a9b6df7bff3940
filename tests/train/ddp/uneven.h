#pragma once
// What the tests of DistributedDataParallel::join share: ranks with different numbers of batches, and one process that
// trains on the batches of all.

#include <torch/optim/sgd.h>

#include <algorithm>

#include "tests/train/ddp/net.h"

namespace treadle::test::ddp_test {

using Counts = std::vector<int>;  // of batches, by rank

inline int mostOf(const Counts& counts) { return *std::max_element(counts.begin(), counts.end()); }

// Momentum and weight decay: a step that a rank leaves out, or makes once more, shows in all later ones.
inline torch::optim::SGDOptions sgdOfUneven() {
  return torch::optim::SGDOptions(0.001).momentum(0.9).weight_decay(0.1);
}

inline double weightOf(int rank) { return 1 + rank; }

// Some batches use no parameter "skipped", and in some steps no rank does.
inline at::Tensor lossOfBatch(NetImpl& net, int rank, int batch) {
  return net.forward(inputOf(rank, batch), (rank + batch) % 2 == 1).square().sum();
}

// The number by which the sum of the ranks' gradients is divided, after so many batches of each.
inline double divisorOf(Divisor divisor, const Counts& batches) {
  double weights = 0, active = 0;
  for (size_t rank = 0; rank < batches.size(); ++rank) {
    weights += weightOf(static_cast<int>(rank)) * batches[rank];
    active += batches[rank] > 0 ? 1 : 0;
  }
  switch (divisor) {
    case Divisor::kWorldSize: return static_cast<double>(batches.size());
    case Divisor::kActiveRanks: return active;
    case Divisor::kSum: return 1;
    case Divisor::kWeights: break;
  }
  return weights;
}

// The parameters, each with its momentum, which is undefined for one that no step has used.
inline std::vector<at::Tensor> stateAfter(const torch::nn::Module& net, const torch::optim::SGD& optimizer) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& parameter : net.parameters()) {
    all.push_back(parameter.detach().clone());
    const auto state = optimizer.state().find(parameter.unsafeGetTensorImpl());
    all.push_back(state == optimizer.state().end()
                      ? at::Tensor()
                      : static_cast<const torch::optim::SGDParamState&>(*state->second).momentum_buffer().clone());
  }
  return all;
}

// One process after so many steps, each on `perStep` batches of each rank that has them.
inline std::vector<at::Tensor> trainedAlone(const Counts& counts, Divisor divisor, int steps, int perStep = 1) {
  Net net(0);
  torch::optim::SGD optimizer(net->parameters(), sgdOfUneven());
  for (int step = 0; step < steps; ++step) {
    Counts batches;
    for (const int count : counts) batches.push_back(std::clamp(count - step * perStep, 0, perStep));
    optimizer.zero_grad();
    for (size_t rank = 0; rank < counts.size(); ++rank)
      for (int batch = 0; batch < batches[rank]; ++batch)
        lossOfBatch(*net, static_cast<int>(rank), step * perStep + batch).div(divisorOf(divisor, batches)).backward();
    optimizer.step();
  }
  return stateAfter(*net, optimizer);
}

inline void expectEqualBits(const std::vector<at::Tensor>& actual, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < actual.size(); ++i)
    EXPECT_TRUE(actual[i].defined() == expected[i].defined() &&
                (!actual[i].defined() || haveEqualBits(actual[i], expected[i])))
        << "tensor " << i;
}

// Each rank has the same bits, which are those of one process but for rounding.
inline void expectTrainedAs(const std::vector<at::Tensor>& alone, const std::vector<std::vector<at::Tensor>>& ofRanks) {
  for (const auto& one : ofRanks) expectEqualBits(one, ofRanks.front());
  ASSERT_EQ(alone.size(), ofRanks.front().size());
  for (size_t i = 0; i < alone.size(); ++i)
    if (!alone[i].defined()) {
      EXPECT_FALSE(ofRanks.front()[i].defined()) << "tensor " << i;
    } else {
      EXPECT_TRUE(close(ofRanks.front()[i], alone[i])) << "tensor " << i;
    }
}

// A replica with its optimizer. It counts steps.
struct Trained {
  Trained(const ProcessGroup& group, const DdpOptions& options)
      : rank(group.rank()),
        weighs(options.divisor == Divisor::kWeights),
        ddp(net, group, options),
        optimizer(net->parameters(), sgdOfUneven()) {}

  ddp::Join join(UnevenInputs atEnd = UnevenInputs::kContinue) {
    return ddp.join([this] { step(); }, atEnd);
  }
  void backward(int batch) {
    if (weighs) ddp.setWeight(weightOf(rank));
    lossOfBatch(*net, rank, batch).backward();
  }
  void step() {
    optimizer.step();
    ++steps;
  }
  void train(int batch) {
    optimizer.zero_grad();
    backward(batch);
    step();
  }
  bool hasGradients() const {
    const std::vector<at::Tensor> parameters = net->parameters();
    return std::any_of(parameters.begin(), parameters.end(),
                       [](const at::Tensor& one) { return one.grad().defined(); });
  }
  std::vector<at::Tensor> state() const { return stateAfter(*net, optimizer); }

  const int rank;
  const bool weighs;
  Net net{0};
  DistributedDataParallel<Net> ddp;
  torch::optim::SGD optimizer;
  int steps = 0;
};

}  // namespace treadle::test::ddp_test

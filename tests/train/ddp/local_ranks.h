#pragma once
// What the tests of LocalSgd share: a rank that trains by it, and all ranks simulated one after the other.

#include <memory>
#include <numeric>

#include "tests/train/ddp/uneven.h"

namespace treadle::test::ddp_test {

struct LocalRank {
  LocalRank(const ProcessGroup& group, const LocalSgdOptions& options, const DdpOptions& ddpOptions = smallBuckets())
      : rank(group.rank()), ddp(net, group, ddpOptions), local(ddp.localSgd(options)) {}

  void backward(int batch) {
    optimizer.zero_grad();
    lossOfBatch(*net, rank, batch).backward();
  }
  void train(int batch) {
    backward(batch);
    optimizer.step();
    local.step();
  }
  std::vector<at::Tensor> state() const { return stateAfter(*net, optimizer); }

  int rank;  // in the job; tests with several groups set it
  Net net{0};
  DistributedDataParallel<Net> ddp;
  torch::optim::SGD optimizer{net->parameters(), sgdOfUneven()};
  ddp::LocalSgd local;
};

using Ranks = std::vector<size_t>;

inline Ranks allOf(size_t size) {
  Ranks all(size);
  std::iota(all.begin(), all.end(), size_t{0});
  return all;
}

// Replicas that train in one process. Each function is for the ranks that it is given.
class SimulatedRanks {
 public:
  explicit SimulatedRanks(size_t size, bool averagesState = false) : averagesState_(averagesState) {
    for (size_t rank = 0; rank < size; ++rank) {
      nets_.emplace_back(0);
      optimizers_.push_back(std::make_unique<torch::optim::SGD>(nets_.back()->parameters(), sgdOfUneven()));
    }
  }

  void backward(const Ranks& ranks, int batch) {
    for (const size_t rank : ranks) optimizers_[rank]->zero_grad();
    addBackward(ranks, batch);
  }
  void addBackward(const Ranks& ranks, int batch) {
    for (const size_t rank : ranks) lossOfBatch(*nets_[rank], static_cast<int>(rank), batch).backward();
  }
  void step(const Ranks& ranks) {
    for (const size_t rank : ranks) optimizers_[rank]->step();
  }
  // A rank without a gradient counts as zeros, unless all are without.
  void averageGradients(const Ranks& ranks) {
    for (size_t i = 0; i < parameters(0).size(); ++i) {
      at::Tensor sum;
      for (const size_t rank : ranks)
        if (const at::Tensor grad = parameters(rank)[i].grad(); grad.defined())
          sum = sum.defined() ? sum + grad : grad.clone();
      if (!sum.defined()) continue;
      for (const size_t rank : ranks) parameters(rank)[i].mutable_grad() = sum / static_cast<double>(ranks.size());
    }
  }
  // All ranks get the mean of those that have trained.
  void averageParameters(const Ranks& trained) {
    if (trained.empty()) return;
    const at::NoGradGuard noGrad;
    for (size_t i = 0; i < parameters(0).size(); ++i) {
      at::Tensor sum = at::zeros_like(parameters(0)[i]), momentum;
      for (const size_t rank : trained) {
        sum += parameters(rank)[i];
        const at::Tensor own = momentumOf(rank, i);
        if (own.defined()) momentum = momentum.defined() ? momentum + own : own.clone();
      }
      const auto count = static_cast<double>(trained.size());
      for (size_t rank = 0; rank < nets_.size(); ++rank) {
        parameters(rank)[i].copy_(sum / count);
        if (averagesState_ && momentum.defined()) setMomentum(rank, i, momentum / count);
      }
    }
  }

  void expectOn(size_t rank, const LocalRank& actual) const {
    const std::vector<at::Tensor> expected = stateAfter(*nets_[rank], *optimizers_[rank]), state = actual.state();
    ASSERT_EQ(state.size(), expected.size());
    for (size_t i = 0; i < state.size(); ++i) {
      ASSERT_EQ(state[i].defined(), expected[i].defined()) << "tensor " << i;
      if (state[i].defined()) {
        EXPECT_TRUE(close(state[i], expected[i], 1e-12)) << "tensor " << i;
      }
    }
  }

 private:
  std::vector<at::Tensor> parameters(size_t rank) const { return nets_[rank]->parameters(); }
  at::Tensor momentumOf(size_t rank, size_t parameter) const {
    return stateAfter(*nets_[rank], *optimizers_[rank])[2 * parameter + 1];
  }
  void setMomentum(size_t rank, size_t parameter, const at::Tensor& momentum) {
    auto state = std::make_unique<torch::optim::SGDParamState>();
    state->momentum_buffer(momentum.clone());
    optimizers_[rank]->state()[parameters(rank)[parameter].unsafeGetTensorImpl()] = std::move(state);
  }

  const bool averagesState_;
  std::vector<Net> nets_;
  std::vector<std::unique_ptr<torch::optim::SGD>> optimizers_;
};

}  // namespace treadle::test::ddp_test

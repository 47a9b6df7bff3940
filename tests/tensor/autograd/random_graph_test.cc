// Random graphs, cut up over two to five workers, against libtorch's own backward over the same graph uncut: in FAST
// mode from all that was made, in SMART mode from some of it, once more from some of the same.

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/seeds.h"
#include "tests/tensor/autograd/loopback.h"

namespace treadle::autograd::random_graph_test {
namespace {

struct Placed {
  at::Tensor tensor;
  int worker;
};

using Transfer = std::function<std::vector<at::Tensor>(int from, int to, const std::vector<at::Tensor>&)>;

// Builds a graph of operations on [4, 4] tensors from random draws alone, so that the same seed gives the same graph
// whatever `transfer` does.
class GraphBuilder {
 public:
  GraphBuilder(uint64_t seed, int workers, const std::vector<at::Tensor>& leaves, Transfer transfer)
      : random_(seed), workers_(workers), transfer_(std::move(transfer)) {
    for (const at::Tensor& leaf : leaves) open_.push_back({leaf, draw(workers_)});
    leaves_ = open_;
  }

  void grow(int steps) {
    for (int i = 0; i < steps; ++i) step();
  }

  // Of what nothing consumed, all or some goes to worker 0 and into the loss. FAST mode wants a gradient for all that
  // was sent.
  at::Tensor loss(bool all) {
    at::Tensor sum = at::zeros({}, at::kDouble).requires_grad_();
    for (const Placed& rest : open_) {
      if (!all && draw(3) > 0) continue;
      at::Tensor here = rest.worker == 0 ? rest.tensor : transfer_(rest.worker, 0, {rest.tensor}).front();
      sum = sum + at::tanh(here).sum();
    }
    return sum;
  }

 private:
  int draw(int below) { return std::uniform_int_distribution<int>(0, below - 1)(random_); }

  Placed& pick() { return open_[static_cast<size_t>(draw(static_cast<int>(open_.size())))]; }

  void step() {
    if (draw(4) == 0) return cross();
    Placed& target = pick();
    at::Tensor other = partner(target);
    target.tensor = combine(target.tensor, other);
    if (draw(5) == 0) open_.push_back({at::sin(target.tensor), target.worker});
  }

  // Something on the same worker: another open tensor, a parameter, or the tensor itself.
  at::Tensor partner(const Placed& target) {
    std::vector<at::Tensor> choices = {target.tensor};
    for (const Placed& each : open_) {
      if (each.worker == target.worker) choices.push_back(each.tensor);
    }
    for (const Placed& each : leaves_) {
      if (each.worker == target.worker) choices.push_back(each.tensor);
    }
    return choices[static_cast<size_t>(draw(static_cast<int>(choices.size())))];
  }

  at::Tensor combine(const at::Tensor& a, const at::Tensor& b) {
    switch (draw(9)) {
      case 0: return a + b;
      case 1: return at::sin(a) * at::tanh(b);
      case 2: return at::matmul(at::tanh(a), at::tanh(b));
      case 3: return at::tanh(a).t();
      case 4: return a + b.select(0, 1);                                  // a broadcast bias
      case 5: return at::add(a, 1.0).mul_(0.5).add_(b);                   // in place, on a temporary
      case 6: return at::cat({a.narrow(1, 2, 2), b.narrow(1, 0, 2)}, 1);  // views
      case 7: return at::exp(at::sin(a)).contiguous().view({2, 8}).t().reshape({4, 4});
      default: {
        at::Tensor changed = a.clone();
        changed.narrow(0, 1, 2).mul_(b.narrow(0, 0, 2));  // in place through a view
        return changed;
      }
    }
  }

  void cross() {
    int from = pick().worker;
    int to = draw(workers_);
    if (from == to) return;
    std::vector<at::Tensor> sent;
    for (const Placed& each : open_) {
      if (each.worker == from && sent.size() < 3 && (sent.empty() || draw(2))) sent.push_back(each.tensor);
    }
    // What was sent stays in use here half of the time; its copy always lives on over there.
    for (at::Tensor& arrived : transfer_(from, to, sent)) open_.push_back({arrived, to});
  }

  std::mt19937_64 random_;
  int workers_;
  Transfer transfer_;
  std::vector<Placed> open_, leaves_;
};

// What all workers of a job have for a leaf.
at::Tensor gradientOf(LoopbackJob& job, int workers, const at::Tensor& leaf) {
  at::Tensor total;
  for (int rank = 0; rank < workers; ++rank) {
    at::Tensor part = job.worker(rank).gradient(leaf);
    if (part.defined()) total = total.defined() ? total + part : part;
  }
  return total;
}

std::vector<at::Tensor> leavesOf(uint64_t seed) {
  at::manual_seed(seed);
  std::vector<at::Tensor> leaves;
  for (int i = 0; i < 6; ++i) leaves.push_back(parameter({4, 4}));
  return leaves;
}

class RandomGraph : public ::testing::TestWithParam<int> {
 protected:
  static std::vector<at::Tensor> sameTensors(int, int, const std::vector<at::Tensor>& sent) { return sent; }
};

TEST_P(RandomGraph, GradientsEqualThoseOfTheUncutGraph) {
  const int workers = GetParam();
  for (uint64_t seed = 1; seed <= test::oracleSeeds(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", workers " << workers);
    std::vector<at::Tensor> leaves = leavesOf(seed);
    GraphBuilder plain(seed, workers, leaves, sameTensors);
    plain.grow(40);
    auto expected = torch::autograd::grad({plain.loss(true)}, leaves, {}, false, false, /*allow_unused=*/true);

    for (AutogradMode mode : {AutogradMode::kFast, AutogradMode::kSmart}) {
      LoopbackJob job(workers, 7, seed, nullptr, mode);
      GraphBuilder cut(seed, workers, leaves,
                       [&](int from, int to, const std::vector<at::Tensor>& sent) { return job.send(from, to, sent); });
      cut.grow(40);
      Status ran = job.backward(0, {{cut.loss(true), {}}});
      ASSERT_TRUE(ran.ok()) << ran.toString();
      for (size_t i = 0; i < leaves.size(); ++i) {
        EXPECT_TRUE(closeTo(gradientOf(job, workers, leaves[i]), expected[i])) << "leaf " << i;
        EXPECT_FALSE(leaves[i].grad().defined()) << "a pass writes no .grad";
      }
      EXPECT_GT(job.delivered(), 0u);
    }
  }
}

TEST_P(RandomGraph, SmartModeIsRightFromAnySubset) {
  const int workers = GetParam();
  for (uint64_t seed = 1; seed <= test::oracleSeeds(); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ", workers " << workers);
    std::vector<at::Tensor> leaves = leavesOf(seed);
    GraphBuilder plain(seed, workers, leaves, sameTensors);
    LoopbackJob job(workers, 7, seed, nullptr, AutogradMode::kSmart);
    GraphBuilder cut(seed, workers, leaves,
                     [&](int from, int to, const std::vector<at::Tensor>& sent) { return job.send(from, to, sent); });
    std::vector<at::Tensor> expected(leaves.size());
    for (int passes = 3; passes > 0; --passes) {
      plain.grow(20);
      cut.grow(20);
      auto more = torch::autograd::grad({plain.loss(false)}, leaves, {}, true, false, /*allow_unused=*/true);
      Status ran = job.backward(0, {{cut.loss(false), {}}}, passes > 1);
      ASSERT_TRUE(ran.ok()) << ran.toString();
      for (size_t i = 0; i < leaves.size(); ++i) {
        if (more[i].defined()) expected[i] = expected[i].defined() ? expected[i] + more[i] : more[i];
        at::Tensor found = gradientOf(job, workers, leaves[i]);
        EXPECT_TRUE(closeTo(found, expected[i])) << "leaf " << i;
        EXPECT_EQ(found.defined(), expected[i].defined()) << "leaf " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Workers, RandomGraph, ::testing::Values(2, 3, 4, 5));

}  // namespace
}  // namespace treadle::autograd::random_graph_test

// Averages lie where they were summed. Nobody notices: what a program holds of a gradient stays its own.

#include <ATen/ops/from_blob.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <set>

#include "tests/train/ddp/net.h"

namespace treadle::test::gradient_memory_test {
namespace {

using namespace ddp_test;

constexpr int kRanks = 2, kSteps = 4;

// One replica per rank; `body` makes its steps.
void onReplicas(const std::function<void(Net&, DistributedDataParallel<Net>&, int rank)>& body) {
  TensorJob job(ranks(kRanks));
  job.onAll([&](Worker& worker) {
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()),
                                     {.buckets = {.firstBytes = 64, .bytes = 400}});  // one has two parameters
    body(net, ddp, worker.self().rank);
  });
}

void backward(DistributedDataParallel<Net>& ddp, int rank, int step) {
  ddp.forward(inputOf(rank, step), /*skip=*/false).square().mean().backward();
}

// What the gradients of all ranks' data are, by name; those of all steps up to `last` if they add up from `first` on.
torch::OrderedDict<std::string, at::Tensor> gradientsOfOne(int first, int last) {
  Net alone(0);
  for (int step = first; step <= last; ++step)
    alone->forward(at::cat({inputOf(0, step), inputOf(1, step)}), false).square().mean().backward();
  torch::OrderedDict<std::string, at::Tensor> gradients;
  for (const auto& entry : alone->named_parameters()) gradients.insert(entry.key(), entry.value().grad());
  return gradients;
}

void expectGradients(Net& net, int first, int last) {
  const auto expected = gradientsOfOne(first, last);
  for (const auto& entry : net->named_parameters())
    EXPECT_TRUE(close(entry.value().grad(), expected[entry.key()])) << entry.key();
}

std::vector<const void*> places(Net& net) {
  std::vector<const void*> all;
  for (const at::Tensor& parameter : net->parameters()) all.push_back(parameter.grad().const_data_ptr());
  return all;
}

size_t storages(Net& net) {
  std::set<const void*> all;
  for (const at::Tensor& parameter : net->parameters()) all.insert(parameter.grad().storage().unsafeGetStorageImpl());
  return all.size();
}

TEST(GradientMemory, IsThatOfTheBuckets) {
  onReplicas([](Net& net, DistributedDataParallel<Net>& ddp, int rank) {
    std::vector<const void*> before;
    bool isUsedAgain = false;
    for (int step = 0; step < 3 * kSteps; ++step) {
      net->zero_grad();
      backward(ddp, rank, step);
      expectGradients(net, step, step);
      EXPECT_LT(storages(net), net->parameters().size()) << "gradients of one bucket are copied out of it";
      isUsedAgain = isUsedAgain || before == places(net);
      before = places(net);
    }
    EXPECT_TRUE(isUsedAgain);
  });
}

// A program may give `.grad` other memory, as a clip that makes a new tensor does.
TEST(GradientMemory, IsTheBucketsOwnWhereAProgramReplacesThatOfAGradient) {
  onReplicas([](Net& net, DistributedDataParallel<Net>& ddp, int rank) {
    for (int step = 0; step < kSteps; ++step) {
      net->zero_grad();
      backward(ddp, rank, step);
      expectGradients(net, step, step);
      for (at::Tensor& parameter : net->parameters()) parameter.mutable_grad().set_data(parameter.grad() * 0.5);
    }
  });
}

// Each of the tensors that a program may hold: the gradient, another one over its memory, and a part of it.
TEST(GradientMemory, OfAGradientThatAProgramKeepsIsNotUsedAgain) {
  onReplicas([](Net& net, DistributedDataParallel<Net>& ddp, int rank) {
    const std::vector<std::function<at::Tensor(const at::Tensor&)>> holds = {
        [](const at::Tensor& gradient) { return gradient; },
        [](const at::Tensor& gradient) { return gradient.detach(); },
        [](const at::Tensor& gradient) { return gradient.narrow(0, 0, 2); },
    };
    std::vector<std::pair<at::Tensor, at::Tensor>> kept;  // and what it was
    for (int step = 0; step < kSteps; ++step) {
      net->zero_grad();
      backward(ddp, rank, step);
      expectGradients(net, step, step);
      for (const auto& hold : holds) {
        const at::Tensor part = hold(net->last.grad());
        kept.emplace_back(part, part.clone());
      }
    }
    for (const auto& [now, then] : kept) EXPECT_TRUE(haveEqualBits(now, then));
  });
}

// A program may lay its gradients out itself, and add to them in place.
TEST(GradientMemory, OfAProgramItselfStaysWhereItIs) {
  onReplicas([](Net& net, DistributedDataParallel<Net>& ddp, int rank) {
    int64_t elements = 0;
    for (const at::Tensor& parameter : net->parameters()) elements += parameter.numel();
    at::Tensor flat = at::zeros({elements}, at::kDouble);
    int64_t offset = 0;
    for (at::Tensor& parameter : net->parameters()) {
      parameter.mutable_grad() = flat.narrow(0, offset, parameter.numel()).view(parameter.sizes());
      offset += parameter.numel();
    }
    const std::vector<const void*> before = places(net);
    for (int step = 0; step < kSteps; ++step) {
      flat.zero_();
      backward(ddp, rank, step);
      expectGradients(net, step, step);
      EXPECT_EQ(before, places(net));
    }
  });
}

// Memory that libtorch does not own, to which a program has a pointer alone.
TEST(GradientMemory, OfAProgramsPointerStaysWhereItIs) {
  onReplicas([](Net& net, DistributedDataParallel<Net>& ddp, int rank) {
    std::vector<double> memory(static_cast<size_t>(net->last.numel()));
    net->last.mutable_grad() = at::from_blob(memory.data(), net->last.sizes(), at::kDouble);
    for (int step = 0; step < kSteps; ++step) {
      std::fill(memory.begin(), memory.end(), 0);
      backward(ddp, rank, step);
      EXPECT_TRUE(
          close(at::from_blob(memory.data(), net->last.sizes(), at::kDouble), gradientsOfOne(step, step)["last"]));
    }
  });
}

TEST(GradientMemory, HoldsGradientsThatAreSetToZeroOrAddUp) {
  onReplicas([](Net& net, DistributedDataParallel<Net>& ddp, int rank) {
    for (int step = 0; step < kSteps; ++step) {
      net->zero_grad(/*set_to_none=*/false);
      backward(ddp, rank, step);
      expectGradients(net, step, step);
    }
    net->zero_grad();
    for (int step = 0; step < kSteps; ++step) {
      backward(ddp, rank, step);
      expectGradients(net, 0, step);
    }
  });
}

// Passes under noSync and an averaged one, more than once, with an optimizer that changes gradients in place.
TEST(GradientMemory, IsRightAfterNoSyncAndAnOptimizer) {
  Net alone(0);
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(0.1);
  torch::optim::SGD optimizer(alone->parameters(), options);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    for (int part : {2 * step, 2 * step + 1})
      alone->forward(at::cat({inputOf(0, part), inputOf(1, part)}), false).square().mean().backward();
    for (at::Tensor& parameter : alone->parameters()) parameter.mutable_grad().mul_(0.5);
    optimizer.step();
  }
  onReplicas([&](Net& net, DistributedDataParallel<Net>& ddp, int rank) {
    torch::optim::SGD own(net->parameters(), options);
    for (int step = 0; step < kSteps; ++step) {
      own.zero_grad();
      {
        const auto guard = ddp.noSync();
        backward(ddp, rank, 2 * step);
      }
      backward(ddp, rank, 2 * step + 1);
      for (at::Tensor& parameter : net->parameters()) parameter.mutable_grad().mul_(0.5);
      own.step();
    }
    for (const auto& entry : alone->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[entry.key()], entry.value())) << entry.key();
  });
}

// A pass over a.view({-1}) + b.view({-1}) makes one gradient, whose memory is that of both (pytorch#34082).
struct TwoViewsImpl : torch::nn::Module {
  TwoViewsImpl() {
    a = register_parameter("a", at::ones({2, 3}, at::kDouble));
    b = register_parameter("b", at::ones({3, 2}, at::kDouble));
  }
  at::Tensor loss(int rank, bool usesBoth) const { return (sum(usesBoth) * factor(rank)).sum(); }
  // The same. The gradient of the sum is that of two uses, so its version is not 0.
  at::Tensor lossOfTwoUses(int rank, bool usesBoth) const {
    const at::Tensor once = sum(usesBoth), weighted = once * factor(rank);
    return weighted.sum() * 0.25 + (once * factor(rank)).sum() * 0.75;
  }
  at::Tensor sum(bool usesBoth) const { return usesBoth ? a.view({-1}) + b.view({-1}) : a.view({-1}); }
  static at::Tensor factor(int rank) { return at::arange(1, 7, at::kDouble) * (1 + 10 * rank); }
  at::Tensor a, b;
};
TORCH_MODULE(TwoViews);

// Has an undefined gradient.
struct WithoutGradient : torch::autograd::Function<WithoutGradient> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& input) { return input.clone(); }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

const at::Tensor& meanOfFactors() {
  static const at::Tensor mean = (TwoViewsImpl::factor(0) + TwoViewsImpl::factor(1)) / 2;
  return mean;
}

// One replica per rank. Where rank 1 uses `a` alone, these are the averages of both.
struct TwoViewsReplica {
  TwoViewsReplica(Worker& of, const std::vector<std::string>& names)
      : worker(of), rank(of.self().rank), ddp(net, ProcessGroup::make(of, names)) {}

  bool usesBoth() const { return rank == 0; }
  void leaveUnaveraged() {
    const auto unaveraged = ddp.noSync();
    net->loss(rank, usesBoth()).backward();
  }
  void expectAverages(int step) const {
    EXPECT_TRUE(close(net->a.grad().view({-1}), meanOfFactors())) << step;
    EXPECT_TRUE(close(net->b.grad().view({-1}), TwoViewsImpl::factor(0) / 2)) << step;
  }

  Worker& worker;
  int rank;
  TwoViews net;
  DistributedDataParallel<TwoViews> ddp;
};

void onTwoViews(const std::function<void(TwoViewsReplica&)>& body) {
  TensorJob job(ranks(kRanks));
  job.onAll([&](Worker& worker) {
    TwoViewsReplica own(worker, job.names());
    body(own);
  });
}

// The module's `b` is frozen, so `a` alone is averaged.
void onOneView(const std::function<void(TwoViews&, DistributedDataParallel<TwoViews>&, int rank)>& body) {
  TensorJob job(ranks(kRanks));
  job.onAll([&](Worker& worker) {
    TwoViews net;
    net->b.set_requires_grad(false);
    DistributedDataParallel<TwoViews> ddp(net, ProcessGroup::make(worker, job.names()));
    body(net, ddp, worker.self().rank);
  });
}

TEST(GradientMemory, OfTwoParametersIsSharedByNoAverages) {
  onTwoViews([](TwoViewsReplica& own) {
    for (int step = 0; step < 3; ++step) {
      own.net->zero_grad();
      own.net->loss(own.rank, own.usesBoth()).backward();
      own.expectAverages(step);
    }
    for (int step = 0; step < 3; ++step) {
      own.net->zero_grad();
      own.net->lossOfTwoUses(own.rank, own.usesBoth()).backward();
      own.expectAverages(step);
    }
    AutogradContext context(own.worker);
    context.backward({own.net->loss(own.rank, own.usesBoth())});
    EXPECT_TRUE(close(context.gradient(own.net->a).view({-1}), meanOfFactors()));
    EXPECT_TRUE(close(context.gradient(own.net->b).view({-1}), TwoViewsImpl::factor(0) / 2));
  });
}

// The gradients were made by a pass before the one that averages them, in which they do not arrive.
TEST(GradientMemory, OfAPassUnderNoSyncIsSharedByNoAverages) {
  onTwoViews([](TwoViewsReplica& own) {
    for (int step = 0; step < 3; ++step) {
      own.net->zero_grad();
      own.leaveUnaveraged();
      own.ddp.synchronize();
      own.expectAverages(step);
    }
  });
}

// It becomes the average, in memory that it shares with no other.
TEST(GradientMemory, OfAGradientThatAProgramHoldsIsSharedByNoAverages) {
  onTwoViews([](TwoViewsReplica& own) {
    for (int step = 0; step < 3; ++step) {
      own.net->zero_grad();
      own.leaveUnaveraged();
      const at::Tensor held = own.net->a.grad();
      own.ddp.synchronize();
      own.expectAverages(step);
      EXPECT_TRUE(held.is_same(own.net->a.grad()));
    }
  });
}

// A program's tensor is written in place, also where it has given a gradient that a pass had made other memory, and
// where the pass comes to the parameter with no gradient.
TEST(GradientMemory, OfAProgramGetsTheAverages) {
  onOneView([](TwoViews& net, DistributedDataParallel<TwoViews>& ddp, int rank) {
    const at::Tensor flat = at::zeros({6}, at::kDouble);
    {
      const auto unaveraged = ddp.noSync();
      net->loss(rank, /*usesBoth=*/false).backward();
      flat.copy_(net->a.grad().view({-1}));
      net->a.mutable_grad().set_data(flat.view({2, 3}));
    }
    ddp.synchronize();
    EXPECT_TRUE(close(flat, meanOfFactors())) << "of other memory";

    const at::Tensor other = TwoViewsImpl::factor(rank);
    net->a.mutable_grad() = other.variable_data().view({2, 3});
    // On rank 0 the gradient is undefined: nothing is added.
    const at::Tensor scaled = rank == 0 ? WithoutGradient::apply(net->a) : net->a * 0;
    scaled.sum().backward();
    EXPECT_TRUE(close(other, meanOfFactors())) << "where no gradient came";
  });
}

// One of them is in no DistributedDataParallel, so its gradient is this rank's own.
TEST(GradientMemory, OfAnotherTensorGetsNoAverage) {
  onOneView([](TwoViews& net, DistributedDataParallel<TwoViews>& /*ddp*/, int rank) {
    const at::Tensor local = at::ones({3, 2}, at::kDouble).requires_grad_();
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      local.mutable_grad() = at::Tensor();
      ((net->a.view({-1}) + local.view({-1})) * TwoViewsImpl::factor(rank)).sum().backward();
      EXPECT_TRUE(close(net->a.grad().view({-1}), meanOfFactors())) << step;
      EXPECT_TRUE(close(local.grad().view({-1}), TwoViewsImpl::factor(rank))) << step;
    }
  });
}

TEST(GradientMemory, OfTwoModulesIsSharedByNoAverages) {
  TensorJob job(ranks(kRanks));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    TwoViews first, second;
    first->b.set_requires_grad(false);
    second->b.set_requires_grad(false);
    DistributedDataParallel<TwoViews> one(first, ProcessGroup::make(worker, job.names())),
        other(second, ProcessGroup::make(worker, job.names()));
    for (int step = 0; step < 3; ++step) {
      first->zero_grad();
      second->zero_grad();
      const at::Tensor sum = first->a.view({-1}) + second->a.view({-1});
      // Rank 1 uses the second one without the first one's factor.
      (rank == 0 ? (sum * TwoViewsImpl::factor(0)).sum()
                 : (first->a.view({-1}) * TwoViewsImpl::factor(1)).sum() + second->a.sum() * 0)
          .backward();
      EXPECT_TRUE(close(first->a.grad().view({-1}), meanOfFactors())) << step;
      EXPECT_TRUE(close(second->a.grad().view({-1}), TwoViewsImpl::factor(0) / 2)) << step;
    }
  });
}

// `.grad` takes the memory of a tensor that is given to backward().
TEST(GradientMemory, OfWhatBackwardIsGivenGetsNoAverage) {
  onOneView([](TwoViews& net, DistributedDataParallel<TwoViews>& /*ddp*/, int rank) {
    const at::Tensor given = TwoViewsImpl::factor(rank);
    for (int step = 0; step < 3; ++step) {
      given.mul_(1);  // its version rises
      net->zero_grad();
      net->a.view({-1}).backward(given);
      EXPECT_TRUE(close(net->a.grad().view({-1}), meanOfFactors())) << step;
      EXPECT_TRUE(haveEqualBits(given, TwoViewsImpl::factor(rank))) << step;
    }
  });
}

TEST(GradientMemory, OfAContextIsItsOwn) {
  TensorJob job(ranks(kRanks));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    AutogradContext first(worker);
    first.backward({ddp.forward(inputOf(rank, 0), false).square().mean()});
    AutogradContext second(worker);
    second.backward({ddp.forward(inputOf(rank, 1), false).square().mean()});
    const auto expected = gradientsOfOne(0, 0), later = gradientsOfOne(1, 1);
    for (const auto& entry : net->named_parameters()) {
      EXPECT_TRUE(close(first.gradient(entry.value()), expected[entry.key()])) << entry.key();
      EXPECT_TRUE(close(second.gradient(entry.value()), later[entry.key()])) << entry.key();
    }
  });
}

}  // namespace
}  // namespace treadle::test::gradient_memory_test

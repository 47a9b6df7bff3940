// Which parameters are averaged: each tensor once, under all its names, as long as what is trained stays the same.

#include <torch/csrc/autograd/autograd.h>

#include "tests/support/expect_error.h"
#include "tests/train/ddp/net.h"
#include "treadle/tensor/collective/collectives.h"

namespace treadle::test::ddp_test {
namespace {

// An embedding whose weight is the output layer's too, as in language models, and a buffer under two names.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    weight = register_parameter("embedding", random({5, 5}, 1));
    register_parameter("output", weight);
    scale = register_buffer("scale", random({5}, 2));
    register_buffer("sameScale", scale);
  }
  at::Tensor forward(const at::Tensor& input) { return (at::tanh(input.mm(weight)) * scale).mm(weight.t()); }
  at::Tensor weight, scale;
};
TORCH_MODULE(Tied);

// Rank 1 does by hand what a replica with one parameter and one buffer does. Operations that are not the same on both
// ranks fail.
TEST(Parameters, ASharedTensorIsSentOnce) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    const DdpOptions options{.start = StartCheck::kTrust};
    Tied net;
    if (worker.self().rank == 0) {
      ddp::broadcastValues(*net, group);
      DistributedDataParallel<Tied> ddp(net, group, options);
      ddp.forward(inputOf(0, 0)).square().mean().backward();
    } else {
      for (at::Tensor tensor : {net->weight.variable_data(), net->scale}) broadcast(group, tensor, 0).wait();
      ddp::startReplicas(*net, group, options);
      answerPass(group, {net->weight}, options);
    }
    barrier(group).wait();
  });
}

TEST(Parameters, ASharedParameterIsTrainedAsInOneProcess) {
  TensorJob job(ranks(2));
  Tied alone;
  alone->forward(at::cat({inputOf(0, 0), inputOf(1, 0)})).square().mean().backward();
  job.onAll([&](Worker& worker) {
    Tied net;
    DistributedDataParallel<Tied> ddp(net, ProcessGroup::make(worker, job.names()));
    ddp.forward(inputOf(worker.self().rank, 0)).square().mean().backward();
    EXPECT_TRUE(close(net->weight.grad(), alone->weight.grad()));
  });
}

// A parameter that is unfrozen after the replicas were made would drift apart.
TEST(Parameters, OneThatIsUnfrozenLaterFailsTheNextAveragedPassOnAllRanks) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    net->skipped.set_requires_grad(false);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    auto pass = [&](int step) { ddp.forward(inputOf(rank, step), false).square().mean().backward(); };
    pass(0);
    net->skipped.set_requires_grad(rank == 0);
    {
      auto unaveraged = ddp.noSync();
      pass(1);
    }
    if (rank == 0) {
      EXPECT_TRUE(contains(messageOf<StateError>([&] { pass(2); }), "'skipped' requires a gradient now"));
    } else {
      EXPECT_THROW(pass(2), CancelledError);
    }
    net->skipped.set_requires_grad(false);
    net->zero_grad();
    pass(3);
    Net alone(0);
    alone->forward(at::cat({inputOf(0, 3), inputOf(1, 3)}), false).square().mean().backward();
    EXPECT_TRUE(close(net->first.grad(), alone->first.grad()));
  });
}

// Rank 1 only.
TEST(Parameters, OneThatIsFrozenOnOneRankFailsThePassOnAll) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    net->bias.set_requires_grad(rank == 0);
    auto pass = [&] { ddp.forward(inputOf(rank, 0), false).square().mean().backward(); };
    if (rank == 0) {
      EXPECT_EQ(statusOf<CancelledError>(pass).worker(), "rank1");
    } else {
      EXPECT_TRUE(contains(messageOf<StateError>(pass), "'bias' requires no gradient any more"));
    }
  });
}

TEST(Parameters, OneThatIsUnfrozenFailsADistributedPassOnAllRanks) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    net->skipped.set_requires_grad(false);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    net->skipped.set_requires_grad(rank == 0);
    AutogradContext context(worker);
    auto pass = [&] { context.backward({ddp.forward(inputOf(rank, 0), false).square().mean()}); };
    if (rank == 0) {
      EXPECT_TRUE(contains(messageOf<StateError>(pass), "'skipped' requires a gradient now"));
    } else {
      EXPECT_EQ(statusOf<CancelledError>(pass).worker(), "rank0");
    }
  });
}

// libtorch drops the hooks of a parameter whose dtype changes, so nothing would be averaged and nothing reported.
TEST(Parameters, OfAnotherDtypeAreRefused) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    net->bias.set_data(net->bias.to(at::kFloat));
    const std::string why = messageOf<StateError>([&] { ddp.forward(inputOf(rank, 0), false); });
    EXPECT_TRUE(contains(why, "parameter 'bias' is of Float now, and was of Double")) << why;
    const at::Tensor loss = ddp->forward(inputOf(rank, 0), false).square().mean();
    EXPECT_THROW(loss.backward(), StateError);
  });
}

// Nothing begins an averaged pass, so no other rank waits, and each would train alone.
TEST(Parameters, ThatAreUnfrozenInPlaceOfTheTrainedOnesAreRefusedByForward) {
  TensorJob job(ranks(1));
  Net net(0);
  net->first.set_requires_grad(false);
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(job[0], job.names()));
  for (const at::Tensor& parameter : net->parameters()) parameter.set_requires_grad(!parameter.requires_grad());
  const auto forward = [&] { ddp.forward(inputOf(0, 0), false); };
  EXPECT_TRUE(contains(messageOf<StateError>(forward), "'first' requires a gradient now"));
  EXPECT_TRUE(contains(messageOf<StateError>([&] { (void)ddp.pendingPasses(); }), "'first' requires a gradient now"));
  const at::NoGradGuard noGrad;
  forward();
}

// As a discriminator while its generator is trained.
TEST(Parameters, ThatAreAllFrozenForAWhilePassGradientsOn) {
  TensorJob job(ranks(1));
  Net net(0);
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(job[0], job.names()));
  for (const at::Tensor& parameter : net->parameters()) parameter.set_requires_grad(false);
  const at::Tensor input = inputOf(0, 0).requires_grad_();
  ddp.forward(input, false).sum().backward();
  EXPECT_TRUE(input.grad().defined());
  EXPECT_EQ(ddp.pendingPasses(), 0U);
}

// A pass over it alone begins no averaged one.
TEST(Parameters, OneThatIsUnfrozenIsNoticedBeforeTheStep) {
  TensorJob job(ranks(1));
  Net net(0);
  net->skipped.set_requires_grad(false);
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(job[0], job.names()));
  net->skipped.set_requires_grad(true);
  net->skipped.sum().backward();
  EXPECT_TRUE(contains(messageOf<StateError>([&] { (void)ddp.pendingPasses(); }), "'skipped' requires a gradient now"));
}

struct HeadedImpl : torch::nn::Module {
  HeadedImpl() { setHead(1), register_module("body", body); }
  at::Tensor forward(const at::Tensor& input) { return head(body(input)); }
  void setHead(int64_t size) {
    head = torch::nn::Linear(7, size);
    head->to(at::kDouble);
    named_children().contains("head") ? replace_module("head", head) : register_module("head", head);
  }
  torch::nn::Linear body{5, 7}, head{nullptr};
};
TORCH_MODULE(Headed);

// The body is averaged, and the new head would be each rank's own.
TEST(Parameters, OfAModuleThatIsReplacedLaterFailTheNextAveragedPassOnAllRanks) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Headed net;
    net->to(at::kDouble);
    DistributedDataParallel<Headed> ddp(net, ProcessGroup::make(worker, job.names()));
    const auto pass = [&] { ddp.forward(inputOf(rank, 0)).square().mean().backward(); };
    pass();
    if (rank == 0) net->setHead(2);
    if (rank == 0) {
      EXPECT_TRUE(contains(messageOf<StateError>(pass), "'head.weight' requires a gradient now"));
    } else {
      EXPECT_EQ(statusOf<CancelledError>(pass).worker(), "rank0");
    }
  });
}

TEST(Parameters, ThatAreAddedLaterFailTheNextAveragedPass) {
  TensorJob job(ranks(1));
  Net net(0);
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(job[0], job.names()));
  const at::Tensor added = net->add("added", {3});
  const auto pass = [&] { (ddp.forward(inputOf(0, 0), false) * added).mean().backward(); };
  EXPECT_TRUE(contains(messageOf<StateError>(pass), "'added' requires a gradient now"));
}

// libtorch drops all hooks, and the module's own forward checks nothing.
TEST(Parameters, ThatAreAllConvertedAreNoticedBeforeTheStep) {
  TensorJob job(ranks(1));
  Net net(0);
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(job[0], job.names()));
  ddp->to(at::kFloat);
  ddp->forward(inputOf(0, 0).to(at::kFloat), false).square().mean().backward();
  EXPECT_TRUE(
      contains(messageOf<StateError>([&] { (void)ddp.pendingPasses(); }), "is of Float now, and was of Double"));
}

TEST(Parameters, OneThatIsFrozenLaterFailsTheNextAveragedPass) {
  TensorJob job(ranks(1));
  Net net(0);
  DistributedDataParallel<Net> ddp(net, ProcessGroup::make(job[0], job.names()));
  net->bias.set_requires_grad(false);
  const std::string message =
      messageOf<StateError>([&] { ddp.forward(inputOf(0, 0), false).square().mean().backward(); });
  EXPECT_TRUE(contains(message, "'bias' requires no gradient any more"));
}

TEST(Parameters, AGradientWithAHistoryIsRefused) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    const at::Tensor loss = ddp.forward(inputOf(rank, 0), false).square().mean();
    auto withHistory = [&] { loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true); };
    EXPECT_TRUE(contains(messageOf<ArgumentError>(withHistory), "torch::autograd::grad"));
    for (const at::Tensor& parameter : net->parameters()) parameter.mutable_grad() = at::Tensor();
    loss.backward();
    EXPECT_TRUE(net->last.grad().defined());
  });
}

// On rank 0 it was made under noSync, and the averaged pass does not come to the parameter.
TEST(Parameters, AGradientWithAHistoryFromAPassUnderNoSyncIsRefused) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    {
      auto unaveraged = ddp.noSync();
      net->skipped.square().sum().backward({}, /*retain_graph=*/true, /*create_graph=*/rank == 0);
    }
    auto pass = [&] { ddp.forward(inputOf(rank, 0), /*skip=*/true).square().mean().backward(); };
    if (rank == 0) {
      EXPECT_TRUE(contains(messageOf<ArgumentError>(pass), "'skipped' has a history"));
    } else {
      EXPECT_EQ(statusOf<CancelledError>(pass).worker(), "rank0");
    }
    net->skipped.mutable_grad() = at::Tensor();
    pass();
  });
}

struct MixedImpl : torch::nn::Module {
  MixedImpl() {
    a = register_parameter("a", at::ones({3}, at::kDouble));
    none = register_parameter("none", at::ones({0}, at::kDouble));
    f = register_parameter("f", at::ones({3}, at::kFloat));
    scalar = register_parameter("scalar", at::ones({}, at::kDouble));
    noneToo = register_parameter("noneToo", at::ones({0, 4}, at::kBFloat16));
  }
  at::Tensor forward(int64_t factor) {
    return ((a * factor).sum() + none.sum()) * scalar + (f * factor).sum().to(at::kDouble) +
           noneToo.sum().to(at::kDouble);
  }
  at::Tensor a, none, f, scalar, noneToo;
};
TORCH_MODULE(Mixed);

TEST(Parameters, OfSeveralDtypesAndOfNoElementsAreAveraged) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Mixed net;
    DistributedDataParallel<Mixed> ddp(net, ProcessGroup::make(worker, job.names()));
    ddp.forward(worker.self().rank + 1).backward();
    EXPECT_TRUE(close(net->a.grad(), at::full({3}, 1.5, at::kDouble)));
    EXPECT_TRUE(close(net->f.grad(), at::full({3}, 1.5, at::kFloat)));
    EXPECT_TRUE(close(net->scalar.grad(), at::full({}, 4.5, at::kDouble)));
    EXPECT_EQ(net->none.grad().sizes(), at::IntArrayRef({0}));
    EXPECT_EQ(net->noneToo.grad().sizes(), at::IntArrayRef({0, 4}));
  });
}

// The norm of the gradient with respect to the input is part of the loss.
at::Tensor withPenalty(const at::Tensor& loss, const at::Tensor& input) {
  return loss +
         torch::autograd::grad({loss}, {input}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0].square().sum();
}

TEST(Parameters, AGradientPenaltyIsThatOfOneProcess) {
  TensorJob job(ranks(2));
  auto lossOf = [](Net& net, int rank) {
    const at::Tensor input = inputOf(rank, 0).requires_grad_();
    return withPenalty(net->forward(input, false).square().mean(), input);
  };
  Net alone(0);
  ((lossOf(alone, 0) + lossOf(alone, 1)) / 2).backward();
  job.onAll([&](Worker& worker) {
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    lossOf(net, worker.self().rank).backward();
    for (const auto& entry : alone->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[entry.key()].grad(), entry.value().grad())) << entry.key();
  });
}

}  // namespace
}  // namespace treadle::test::ddp_test

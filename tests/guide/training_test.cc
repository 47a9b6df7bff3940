// The code of docs/guide/distributed_training.md: an embedding on a server, a linear layer on two trainers,
// trained by a distributed backward pass, and saved.

#include <torch/csrc/autograd/autograd.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adam.h>
#include <torch/optim/schedulers/step_lr.h>
#include <torch/optim/sgd.h>
// [headers]
#include <treadle/amp.h>
#include <treadle/autograd.h>
#include <treadle/checkpoint.h>
#include <treadle/ddp.h>
#include <treadle/group.h>
#include <treadle/nn.h>
#include <treadle/optim.h>
// [/headers]

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <memory>
#include <sstream>

#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"

namespace {

// [remote-module]
torch::nn::Embedding makeEmbedding(int64_t rows, int64_t width) { return torch::nn::Embedding(rows, width); }

using Embedding = treadle::RemoteModule<torch::nn::Embedding>;
// [/remote-module]

// [remote-submodule]
// Words are looked up on the server; the rest is where the model is.
struct ModelImpl : torch::nn::Module {
  explicit ModelImpl(const Embedding& there)
      : words(register_module("words", treadle::RemoteSubmodule<torch::nn::Embedding>(there))),
        scores(register_module("scores", torch::nn::Linear(8, 2))) {}
  at::Tensor forward(const at::Tensor& indices) { return scores(words->forward(indices)); }

  treadle::RemoteSubmodule<torch::nn::Embedding> words;
  torch::nn::Linear scores;
};
TORCH_MODULE(Model);
// [/remote-submodule]

// [train]
// Runs on each trainer, called by the master. `embedding` is a handle: the module stays on the server.
double train(treadle::CallContext& call, const Embedding& embedding, int64_t steps) {
  treadle::Worker& worker = call.worker();
  auto group = treadle::ProcessGroup::make(worker, {"trainer0", "trainer1"});
  treadle::DistributedDataParallel<torch::nn::Linear> linear(torch::nn::Linear(8, 2), group);

  std::vector<treadle::RRef<at::Tensor>> parameters = embedding.remoteParameters();
  for (auto& own : treadle::parameterRefs(worker, *linear)) parameters.push_back(own);
  auto optimizer =
      treadle::DistributedOptimizer::make<torch::optim::SGD>(worker, parameters, torch::optim::SGDOptions(0.1));
  at::Tensor indices = at::arange(8) + 8 * group.rank(), labels = indices % 2;
  double last = 0;
  for (int64_t step = 0; step < steps; ++step) {
    treadle::AutogradContext context(worker);  // one forward and backward pass
    at::Tensor loss = torch::nn::functional::cross_entropy(linear.forward(embedding.forward(indices)), labels);
    context.backward({loss});  // on the server too; DDP averages the linear layer's gradients meanwhile
    optimizer.step(context);   // each parameter where it lives
    last = loss.item<double>();
  }
  return last;
}
// [/train]

// [training-functions]
treadle::Functions functions() {
  treadle::Functions functions;
  treadle::addModule<&makeEmbedding>(functions, "Embedding");
  functions.add<&train>("train");
  return functions;
}
// [/training-functions]

class TrainingGuide : public ::testing::Test {
 protected:
  treadle::test::TensorJob job{{"master", "server", "trainer0", "trainer1"}, functions()};
  treadle::Worker& worker = job[0];
};

TEST_F(TrainingGuide, TheLossFallsOnBothTrainers) {
  // [master]
  Embedding embedding(worker, "server", 16, 8);  // makeEmbedding(16, 8), there
  treadle::CallProxy whileTheyLive = worker.with({.timeout = treadle::kNoTimeout});
  std::vector<treadle::Future<double>> losses;
  for (const std::string trainer : {"trainer0", "trainer1"})
    losses.push_back(whileTheyLive.async<&train>(trainer, embedding, 400));
  for (treadle::Future<double>& loss : losses) std::cout << "loss " << loss.wait() << std::endl;
  // [/master]
  for (treadle::Future<double>& loss : losses) EXPECT_LT(loss.wait(), 0.3);
}

TEST_F(TrainingGuide, ASegmentMayBeCheckpointed) {
  Embedding embedding(worker, "server", 16, 8);
  at::Tensor indices = at::arange(4);
  // [checkpointed-segment]
  treadle::AutogradContext context(worker);
  torch::nn::Sequential block(torch::nn::Linear(8, 64), torch::nn::Tanh(), torch::nn::Linear(64, 1));
  at::Tensor output = treadle::checkpoint([block](const at::Tensor& input) mutable { return block->forward(input); },
                                          embedding.forward(indices), {.parameters = block->parameters()});
  context.backward({output.sum()});  // runs the block again
  // [/checkpointed-segment]
  at::Tensor rows = embedding.remoteParameters().at(0).toHere().detach().slice(0, 0, 4);
  const auto expected = torch::autograd::grad({block->forward(rows).sum()}, block->parameters());
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_TRUE(at::allclose(context.gradient(block->parameters()[i]), expected[i]));
}

TEST_F(TrainingGuide, GradientsAreInTheContext) {
  Embedding embedding(worker, "server", 16, 8);
  at::Tensor indices = at::arange(4);
  // [gradients]
  at::Tensor weight = at::ones({8}).requires_grad_();
  treadle::AutogradContext context(worker);
  context.backward({(embedding.forward(indices) * weight).sum()});
  at::Tensor gradient = context.gradient(weight);  // weight.grad() stays undefined
  // [/gradients]
  at::Tensor rows = embedding.remoteParameters().at(0).toHere().detach();
  EXPECT_TRUE(at::allclose(gradient, rows.slice(0, 0, 4).sum(0)));
  EXPECT_FALSE(weight.grad().defined());
}

TEST_F(TrainingGuide, AModelMayHaveRemoteSubmodules) {
  // [use-remote-submodule]
  Model model(Embedding(worker, "server", 16, 8));
  auto optimizer = treadle::DistributedOptimizer::make<torch::optim::SGD>(
      worker, treadle::parameterRefs(worker, *model), torch::optim::SGDOptions(0.1));
  treadle::ModuleState state = treadle::stateOf(*model);  // "words.weight", from the server, "scores.weight", ...
  // [/use-remote-submodule]
  EXPECT_EQ(state.size(), 3U);
  EXPECT_EQ(treadle::parameterRefs(worker, *model).at(0).owner().name, "server");
}

TEST_F(TrainingGuide, AnOptimizerIsScheduledAndSaved) {
  Embedding embedding(worker, "server", 16, 8), scores(worker, "server", 16, 1);
  auto rows = embedding.remoteParameters(), others = scores.remoteParameters();
  std::string folder = std::filesystem::temp_directory_path() / "treadle-guide-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/optimizer.safetensors";
  // [schedule]
  using torch::optim::Adam, torch::optim::AdamOptions;
  auto optimizer = treadle::DistributedOptimizer::make<Adam>(
      worker, {{rows}, {others, AdamOptions().weight_decay(0.1)}}, AdamOptions(0.01));
  torch::optim::StepLR schedule(optimizer.groups(), 10, 0.5);  // half of it every ten steps
  for (int64_t step = 0; step < 20; ++step) {
    treadle::AutogradContext context(worker);
    context.backward({(embedding.forward(at::arange(16)) * scores.forward(at::arange(16))).sum()});
    optimizer.step();
    schedule.step();
  }
  // [/schedule]
  EXPECT_DOUBLE_EQ(optimizer.learningRate(), 0.005);
  // [optimizer-state]
  treadle::saveSafetensors(path, optimizer.state());

  auto resumed = treadle::DistributedOptimizer::make<Adam>(worker, {{rows}, {others}}, AdamOptions());
  resumed.load(treadle::loadSafetensors(path));  // the options of its groups too
  // [/optimizer-state]
  EXPECT_EQ(resumed.learningRate(1), optimizer.learningRate(1));
  EXPECT_EQ(resumed.options<AdamOptions>(1).weight_decay(), 0.1);
  EXPECT_EQ(resumed.state().at("state.1.step").item<int64_t>(), 20);
  std::filesystem::remove_all(folder);
}

TEST(NoSyncGuide, SeveralBatchesCostOneExchange) {
  constexpr int64_t kBatches = 3;
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  const at::Tensor all = at::rand({2 * kBatches, 4, 8});
  torch::nn::Linear alone(8, 2);
  job.onAll([&](treadle::Worker& worker) {
    const at::Tensor inputs = all.slice(0, kBatches * worker.self().rank);
    torch::nn::Linear linear(8, 2);
    treadle::loadState(*linear, treadle::stateOf(*alone));
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(linear, treadle::ProcessGroup::make(worker, job.names()));
    // [no-sync]
    treadle::AutogradContext context(worker);
    auto backward = [&](int64_t batch) { context.backward({ddp.forward(inputs[batch]).square().mean() / kBatches}); };
    {
      auto unaveraged = ddp.noSync();
      for (int64_t batch = 0; batch < kBatches - 1; ++batch) backward(batch);
    }
    backward(kBatches - 1);  // averages the gradients of all batches
    // [/no-sync]
    at::Tensor expected = torch::autograd::grad({alone->forward(all).square().mean()}, {alone->weight})[0];
    EXPECT_TRUE(at::allclose(context.gradient(linear->weight), expected, 1e-4, 1e-6));
  });
}

TEST(VerifyGuide, EqualReplicasNeedNoBroadcast) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  torch::nn::Linear loaded(8, 2);
  job.onAll([&](treadle::Worker& worker) {
    torch::nn::Linear model(8, 2);
    auto group = treadle::ProcessGroup::make(worker, job.names());
    EXPECT_THROW(treadle::DistributedDataParallel<torch::nn::Linear>(model, group,
                                                                     {.start = treadle::StartCheck::kVerifyValues}),
                 treadle::StateError);
    treadle::loadState(*model, treadle::stateOf(*loaded));
    // [verify]
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(model, group,
                                                            {.start = treadle::StartCheck::kVerifyValues});
    ddp.verifyReplicas();  // on all ranks, between steps
    // [/verify]
    EXPECT_TRUE(at::equal(model->weight, loaded->weight));
  });
}

TEST(BuffersGuide, RunningMeansAreAveraged) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    torch::nn::BatchNorm1d model(8);
    at::Tensor inputs = at::ones({4, 8}) * group.rank();
    // [buffers]
    treadle::DistributedDataParallel<torch::nn::BatchNorm1d> ddp(model, group, {.buffers = treadle::Buffers::kAverage});
    ddp.forward(inputs).square().mean().backward();
    // [/buffers]
    EXPECT_TRUE(at::allclose(model->running_mean, at::full({8}, 0.05)));  // momentum 0.1, means 0 and 1
  });
}

TEST(SkipGuide, RanksMayHaveNoBatchOrABadOne) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  std::vector<int64_t> steps(2);
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(torch::nn::Linear(8, 2), group);
    torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.01));
    std::vector<at::Tensor> batches(4 - static_cast<size_t>(group.rank()), at::ones({4, 8}));
    if (group.rank() == 1) batches[1] = at::full({4, 8}, std::numeric_limits<float>::infinity());
    int64_t& stepsHere = steps.at(static_cast<size_t>(group.rank()));
    // [skip]
    for (size_t step = 0; step < 4; ++step) {
      optimizer.zero_grad();
      at::Tensor loss;
      if (step < batches.size()) loss = ddp.forward(batches[step]).square().mean();
      if (ddp.agreeToSkip(loss.defined() && !loss.isfinite().item<bool>())) continue;  // on all ranks, or on none
      loss.defined() ? loss.backward() : ddp.skipPass();
      optimizer.step();
      ++stepsHere;
    }
    // [/skip]
    ddp.verifyReplicas();
  });
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 3}));
}

TEST(JoinGuide, RanksMayHaveOtherNumbersOfBatches) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  std::vector<int64_t> steps(2);
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(torch::nn::Linear(8, 2), group,
                                                            {.divisor = treadle::Divisor::kActiveRanks});
    torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    std::vector<at::Tensor> batches(group.rank() == 0 ? 2 : 5, at::ones({4, 8}));
    int64_t& stepsHere = steps.at(static_cast<size_t>(group.rank()));
    // [join]
    auto step = [&] {
      optimizer.step();
      ++stepsHere;
    };
    auto join = ddp.join(step);
    for (const at::Tensor& batch : batches) {
      optimizer.zero_grad();
      ddp.forward(batch).square().mean().backward();
      step();
    }
    join.finish();  // makes the steps of the other ranks, until none has a batch left
    // [/join]
    ddp.verifyReplicas();
  });
  EXPECT_EQ(steps, (std::vector<int64_t>{5, 5}));
}

TEST(JoinGuide, AllRanksMayStopAtTheFirstEnd) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(torch::nn::Linear(8, 2), group);
    torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.01));
    std::vector<at::Tensor> batches(group.rank() == 0 ? 2 : 5, at::ones({4, 8}));
    int64_t stepsHere = 0;
    auto step = [&] {
      optimizer.step();
      ++stepsHere;
    };
    // [join-stop]
    auto join = ddp.join(step, treadle::UnevenInputs::kStopAtFirst);
    for (const at::Tensor& batch : batches) {
      optimizer.zero_grad();
      ddp.forward(batch).square().mean().backward();
      if (join.isOver()) break;  // another rank has no batch for this step
      step();
    }
    join.finish();
    // [/join-stop]
    EXPECT_EQ(stepsHere, 2);
    ddp.verifyReplicas();
  });
}

TEST(LocalSgdGuide, RanksTrainAloneBetweenMeans) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(torch::nn::Linear(8, 2), group);
    torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
    std::vector<at::Tensor> batches(group.rank() == 0 ? 23 : 27, at::ones({4, 8}) * (1 + group.rank()));
    // [local-sgd]
    auto local = ddp.localSgd({.period = 8, .startAfter = 10});
    local.averageState(optimizer);  // also momentum; without it each rank keeps its own
    for (const at::Tensor& batch : batches) {
      optimizer.zero_grad();
      ddp.forward(batch).square().mean().backward();
      optimizer.step();
      local.step();  // after each step: averages the parameters where it is due
    }
    local.finish();  // takes part in the means of the other ranks, until none has a batch left
    // [/local-sgd]
    EXPECT_EQ(local.steps(), static_cast<int64_t>(batches.size()));
    ddp.verifyReplicas();
  });
}

TEST(AsynchronousGuide, WorkersTrainAtTheirOwnPace) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    const int rank = worker.self().rank;
    torch::nn::Linear model(8, 2);
    torch::optim::SGD optimizer(model->parameters(), 0.005);
    std::vector<at::Tensor> batches(rank == 0 ? 3 : 20, at::ones({4, 8}) * (1 + rank));
    double loss = 0;
    // [asynchronous]
    treadle::AsynchronousParameters shared(worker, *model, {.staleness = 8});  // begins with the first worker's
    for (const at::Tensor& batch : batches) {
      optimizer.zero_grad();
      at::Tensor output = model->forward(batch).square().mean();
      output.backward();
      optimizer.step();
      shared.exchange();  // gives what the step has changed, and takes the latest parameters
      loss = output.item<double>();
    }
    // [/asynchronous]
    EXPECT_LT(loss, rank == 0 ? 40 : 0.1);
  });
}

TEST(ReplicaSetGuide, RanksAndReplicasTrainAsOneProcess) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  const at::Tensor inputs = at::rand({16, 8}), labels = at::arange(16) % 2;
  const torch::nn::Linear first(8, 2);
  auto copyOf = [&] { return std::dynamic_pointer_cast<torch::nn::LinearImpl>(first->clone()); };
  torch::nn::Linear alone(copyOf());
  torch::nn::functional::cross_entropy(alone->forward(inputs), labels).backward();
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(copyOf(), group);
    torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.01));
    struct Batch {
      at::Tensor inputs, labels;
    };
    std::vector<Batch> batches = {
        {inputs.narrow(0, 8 * group.rank(), 8).clone(), labels.narrow(0, 8 * group.rank(), 8).clone()}};
    // [replica-set]
    treadle::ReplicaSet<torch::nn::Linear> replicas(ddp, {.replicas = 4});
    for (const Batch& batch : batches) {
      const std::vector<at::Tensor> inputs = batch.inputs.tensor_split(4), labels = batch.labels.tensor_split(4);
      optimizer.zero_grad();
      replicas.backward([&](torch::nn::LinearImpl& replica, int i) {  // in four threads
        return torch::nn::functional::cross_entropy(replica.forward(inputs[i]), labels[i]);
      });
      optimizer.step();
    }
    // [/replica-set]
    EXPECT_TRUE(at::allclose(ddp->weight.grad(), alone->weight.grad(), 1e-5, 1e-6));
    ddp.verifyReplicas();
  });
}

TEST(OptimizerInBackwardGuide, PassesStep) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    torch::nn::Linear model(8, 2);
    std::vector<at::Tensor> batches(5, at::ones({4, 8}) * (1 + group.rank()));
    // [optimizer-in-backward]
    auto optimizer = std::make_shared<torch::optim::AdamW>(model->parameters(), torch::optim::AdamWOptions(0.01));
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(model, group, {.optimizerInBackward = optimizer});
    for (const at::Tensor& batch : batches) {
      ddp.forward(batch).square().mean().backward();  // averages, steps, and clears the gradients
    }
    // [/optimizer-in-backward]
    EXPECT_FALSE(model->weight.grad().defined());
    EXPECT_EQ(static_cast<torch::optim::AdamWParamState&>(*optimizer->state().begin()->second).step(), 5);
    ddp.verifyReplicas();
  });
}

struct TwoLayers : torch::nn::Module {
  torch::nn::Linear first{register_module("first", torch::nn::Linear(8, 8))};
  torch::nn::Linear last{register_module("last", torch::nn::Linear(8, 2))};
};

TEST(OverlapForwardGuide, AveragesComeDuringTheNextForwardPass) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    auto shared = std::make_shared<TwoLayers>();
    TwoLayers& model = *shared;
    std::vector<at::Tensor> batches(5, at::ones({4, 8}) * (1 + group.rank()));
    // [overlap-forward]
    auto optimizer = std::make_shared<torch::optim::SGD>(model.parameters(), torch::optim::SGDOptions(0.1));
    treadle::DistributedDataParallel<torch::nn::Module> ddp(
        shared, group,
        {.averageBy = treadle::AverageBy::kService, .optimizerInBackward = optimizer, .overlapForward = true});
    for (const at::Tensor& batch : batches) {
      ddp.awaitAverages(*model.first);  // before the module is used: waits for its averages, and steps it
      const at::Tensor hidden = model.first->forward(batch).relu();
      ddp.awaitAverages(*model.last);
      model.last->forward(hidden).square().mean().backward();  // returns while averages are on their way
    }
    ddp.awaitAverages();  // all of them, before parameters are saved or compared
    // [/overlap-forward]
    EXPECT_EQ(ddp.stats().averagedPasses, batches.size());
    ddp.verifyReplicas();
  });
}

TEST(WeightsGuide, AMeanOverAllSamplesCanBeOfOtherNumbersOfThem) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  const at::Tensor all = at::rand({7, 8});
  torch::nn::Linear alone(8, 2);
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    const at::Tensor inputs = group.rank() == 0 ? all.slice(0, 0, 2) : all.slice(0, 2);
    torch::nn::Linear model(8, 2);
    treadle::loadState(*model, treadle::stateOf(*alone));
    // [weights]
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(model, group, {.divisor = treadle::Divisor::kWeights});
    ddp.setWeight(static_cast<double>(inputs.size(0)));  // before each pass
    ddp.forward(inputs).square().sum().backward();
    // [/weights]
    at::Tensor expected = torch::autograd::grad({alone->forward(all).square().sum() / 7}, {alone->weight})[0];
    EXPECT_TRUE(at::allclose(model->weight.grad(), expected, 1e-4, 1e-5));
  });
}

TEST(ClipGuide, AllRanksClipByOneNorm) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  std::vector<double> norms(2);
  job.onAll([&](treadle::Worker& worker) {
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(torch::nn::Linear(8, 2),
                                                            treadle::ProcessGroup::make(worker, job.names()));
    auto optimizer = treadle::DistributedOptimizer::make<torch::optim::SGD>(
        worker, treadle::parameterRefs(worker, *ddp), torch::optim::SGDOptions(0.1));
    at::Tensor inputs = at::ones({4, 8}) * (1 + worker.self().rank);
    // [clip]
    treadle::AutogradContext context(worker);
    context.backward({ddp.forward(inputs).square().mean()});
    double norm = treadle::clipGradNorm(optimizer, context, ddp, 1.0);
    optimizer.step(context);
    // [/clip]
    norms.at(static_cast<size_t>(worker.self().rank)) = norm;
  });
  EXPECT_EQ(norms[0], norms[1]);
}

TEST(MixedPrecisionGuide, AScaledLossTrains) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(torch::nn::Linear(8, 2), group);
    torch::optim::SGD optimizer(ddp->parameters(), torch::optim::SGDOptions(0.01));
    at::Tensor inputs = at::rand({4, 8});
    std::vector<double> losses;
    // [mixed-precision]
    treadle::GradScaler scaler(group);
    for (int64_t step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      at::Tensor loss;
      {
        treadle::Autocast float16(at::kHalf);
        loss = ddp.forward(inputs).square().mean();
      }
      scaler.scale(loss).backward();
      scaler.unscale(optimizer);  // for clipping; step() does it otherwise
      treadle::clipGradNorm(*ddp, 1.0);
      scaler.step(optimizer);  // skipped on all ranks if a gradient overflowed
      scaler.update();
      losses.push_back(loss.item<double>());
    }
    // [/mixed-precision]
    EXPECT_LT(losses.back(), losses.front());
  });
}

TEST(SummationGuide, GradientsMayBeAveragedByAService) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    torch::nn::Linear model(64, 32);
    // [average-by]
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(model, group, {.averageBy = treadle::AverageBy::kService});
    // [/average-by]
    ddp.forward(at::full({16, 64}, 1.0 + group.rank())).sum().backward();
    EXPECT_TRUE(at::equal(model->weight.grad(), at::full({32, 64}, 24.0)));
  });
}

TEST(CompressionGuide, ALossyHookTrainsAndGoesOnFromItsState) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  std::string folder = std::filesystem::temp_directory_path() / "treadle-guide-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    torch::nn::Linear model(64, 32), other(64, 32);
    at::Tensor inputs = at::rand({16, 64});
    const std::string path = folder + "/hook" + std::to_string(group.rank()) + ".safetensors";
    {
      // [cast-hook]
      auto hook = std::make_shared<treadle::CastHook>(at::kBFloat16);
      treadle::DistributedDataParallel<torch::nn::Linear> ddp(model, group, {.hook = hook});
      // [/cast-hook]
      ddp.forward(inputs).square().mean().backward();
      EXPECT_TRUE(at::equal(model->bias.grad(), model->bias.grad().to(at::kBFloat16).to(at::kFloat)));
    }
    // [power-sgd]
    auto hook = std::make_shared<treadle::PowerSgdHook>(treadle::PowerSgdOptions{.rank = 2, .startAfter = 10});
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(model, group, {.hook = hook});
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1));
    for (int64_t step = 0; step < 20; ++step) {
      optimizer.zero_grad();
      ddp.forward(inputs).square().mean().backward();
      optimizer.step();
    }
    treadle::saveSafetensors(path, hook->state());  // each rank its own
    // [/power-sgd]
    treadle::loadState(*other, treadle::stateOf(*model));
    // [load-hook]
    auto resumed = std::make_shared<treadle::PowerSgdHook>(treadle::PowerSgdOptions{.rank = 2, .startAfter = 10});
    resumed->load(treadle::loadSafetensors(path));  // before it is given to a DistributedDataParallel
    treadle::DistributedDataParallel<torch::nn::Linear> again(other, group, {.hook = resumed});
    // [/load-hook]
    ddp->zero_grad();
    ddp.forward(inputs).square().mean().backward();
    again.forward(inputs).square().mean().backward();
    EXPECT_TRUE(at::equal(other->weight.grad(), model->weight.grad()));
  });
  std::filesystem::remove_all(folder);
}

// [own-hook]
// Averages gradients as bfloat16, and counts them.
class Counting : public treadle::CommHook {
 public:
  std::string description() const override { return "Counting"; }  // and all options: ranks compare it
  treadle::Reduction reduce(treadle::Exchange& exchange, const treadle::ddp::Bucket& bucket) override {
    at::Tensor sent = bucket.flat.to(at::kBFloat16);
    co_await exchange.round(treadle::allReduce(exchange.group(), sent, treadle::ReduceOp::kAverage));
    bucket.flat.copy_(sent);
    averaged += bucket.flat.numel();
  }
  int64_t averaged = 0;
};
// [/own-hook]

TEST(OwnHookGuide, AProgramMayWriteOne) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    torch::nn::Linear model(8, 2);
    auto hook = std::make_shared<Counting>();
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(model, group, {.hook = hook});
    ddp.forward(at::full({4, 8}, 1.0 + group.rank())).sum().backward();
    EXPECT_EQ(hook->averaged, 18);
    EXPECT_TRUE(at::equal(model->weight.grad(), at::full({2, 8}, 6.0F)));
  });
}

TEST(RebindGuide, TheOthersGoOnAfterALoss) {
  treadle::test::TensorJob job({"trainer0", "trainer1", "trainer2"});
  treadle::test::Counter constructed;
  job.onAll([&](treadle::Worker& worker) {
    auto members = job.names();
    torch::nn::Linear model(8, 2);
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(model, treadle::ProcessGroup::make(worker, members));
    auto makeOptimizer = [&] {
      return std::make_unique<torch::optim::Adam>(model->parameters(), torch::optim::AdamOptions(1e-3));
    };
    auto optimizer = makeOptimizer();
    constructed.add();
    constructed.waitFor(3);
    if (worker.self().rank == 2) return job.kill(2);
    const std::vector<at::Tensor> batches(4, at::rand({4, 8}));
    const auto count = static_cast<int64_t>(batches.size());
    // [rebind]
    auto step = [&](const at::Tensor& inputs) {
      optimizer->zero_grad();
      ddp.forward(inputs).square().mean().backward();
      optimizer->step();
    };
    // Goes on with the workers that are left. Returns the place of the batch that is next on all of them.
    auto goOn = [&](int64_t batch) {
      auto group = treadle::ProcessGroup::make(worker, members);
      if (!ddp.rebind(group)) optimizer = makeOptimizer();
      at::Tensor next = at::full({1}, batch, at::kLong);  // some may have made a step more
      treadle::allReduce(group, next, treadle::ReduceOp::kMax).wait();
      return next.item<int64_t>();
    };
    bool isLost = false;
    for (int64_t batch = 0; batch <= count;) {
      try {
        if (isLost) batch = goOn(batch);
        isLost = false;
        // At the end, others may have failed in the last batch.
        batch < count ? step(batches[batch]) : treadle::barrier(ddp.group()).wait();
        ++batch;
      } catch (const treadle::PeerLostError& error) {
        if (std::erase(members, error.worker()) == 0) throw;  // it is no member, so averages could go on
        isLost = true;
      }
    }
    // [/rebind]
    EXPECT_EQ(ddp.group().size(), 2);
    EXPECT_EQ(ddp.stats().averagedPasses, 4U);
    ddp.verifyReplicas();
  });
}

TEST(StatsGuide, AStepIsDividedIntoItsParts) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    treadle::DistributedDataParallel<torch::nn::Linear> ddp(torch::nn::Linear(8, 2), group);
    for (int step = 0; step < 3; ++step) ddp.forward(at::rand({4, 8})).square().mean().backward();
    std::ostringstream out;
    // [stats]
    treadle::DdpStats stats = ddp.stats();
    treadle::Duration exposed = stats.recent.back().times.exposed;  // of the last step
    out << describe(stats);
    // [/stats]
    EXPECT_GE(exposed, treadle::Duration::zero());
    EXPECT_NE(out.str().find("the mean of 3 steps"), std::string::npos);
  });
}

TEST(SamplerGuide, RanksShareADataset) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  std::vector<int64_t> seen(10);
  std::mutex mutex;
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, job.names());
    auto samples = torch::data::datasets::TensorDataset(at::arange(10));
    // [sampler]
    auto dataset = samples.map(torch::data::transforms::Stack<torch::data::TensorExample>());
    auto sampler = treadle::DistributedSampler(samples.size().value(), group, {.seed = 1});
    auto loader = torch::data::make_data_loader(dataset, sampler, torch::data::DataLoaderOptions(2));
    // [/sampler]
    for (int epoch = 0; epoch < 3; ++epoch)
      for (auto& batch : *loader) {
        std::lock_guard lock(mutex);
        for (int64_t i = 0; i < batch.data.size(0); ++i) ++seen.at(static_cast<size_t>(batch.data[i].item<int64_t>()));
      }
  });
  EXPECT_EQ(seen, std::vector<int64_t>(10, 3));
}

// [sync-batch-norm]
struct DigitsImpl : torch::nn::Module {
  DigitsImpl(treadle::Worker& worker, const treadle::ProcessGroup& group)
      : convolution(register_module("convolution", torch::nn::Conv2d(1, 8, 3))),
        norm(register_module("norm", treadle::SyncBatchNorm(8, worker, group))),
        scores(register_module("scores", torch::nn::Linear(8, 10))) {}
  at::Tensor forward(const at::Tensor& images) { return scores(at::relu(norm(convolution(images))).mean({2, 3})); }

  torch::nn::Conv2d convolution;
  treadle::SyncBatchNorm norm;
  torch::nn::Linear scores;
};
TORCH_MODULE(Digits);
// [/sync-batch-norm]

TEST(SyncBatchNormGuide, RanksOfOtherBatchSizesTrainTogether) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, {"trainer0", "trainer1"});
    treadle::DistributedDataParallel<Digits> ddp(Digits(worker, group), group);
    ddp.forward(at::rand({1 + 2 * group.rank(), 1, 6, 6})).square().mean().backward();
    EXPECT_TRUE(ddp->norm->weight.grad().defined());
    EXPECT_EQ(ddp->norm->num_batches_tracked.item<int64_t>(), 1);
  });
}

TEST(CollectivesGuide, TensorsOfAllMembersAreCombined) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    // [collectives]
    auto group = treadle::ProcessGroup::make(worker, {"trainer0", "trainer1"});
    at::Tensor loss = at::full({1}, 1.0 + group.rank());
    at::Tensor rows = at::arange(8, at::kFloat).view({4, 2}) + 100 * group.rank(), all = at::empty({8, 2}),
               part = at::empty({2, 2});

    treadle::Future<void> average = treadle::allReduce(group, loss, treadle::ReduceOp::kAverage);
    treadle::Future<void> gathered = treadle::allGather(group, rows, all);
    treadle::Future<void> summed = treadle::reduceScatter(group, rows, part);
    average.wait();   // 1.5 on both
    gathered.wait();  // the rows of rank 0, then those of rank 1
    summed.wait();    // the sum of the first two rows on rank 0, of the last two on rank 1
    // [/collectives]
    EXPECT_EQ(loss.item<float>(), 1.5F);
    at::Tensor first = at::arange(8, at::kFloat).view({4, 2});
    EXPECT_TRUE(at::equal(all, at::cat({first, first + 100})));
    EXPECT_TRUE(at::equal(part, (2 * first + 100).slice(0, 2L * group.rank(), 2L * group.rank() + 2)));
  });
}

TEST(CollectivesGuide, SparseTensorsOfAllMembersAreSummed) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, {"trainer0", "trainer1"});
    // [sparse-all-reduce]
    torch::nn::Embedding words(torch::nn::EmbeddingOptions(10'000, 64).sparse(true));
    words->forward(at::arange(3) + group.rank()).sum().backward();  // rows 0 to 2 here, 1 to 3 on rank 1
    treadle::Future<at::Tensor> average =
        treadle::sparseAllReduce(group, words->weight.grad(), treadle::ReduceOp::kAverage);
    words->weight.mutable_grad() = average.wait();  // rows 0 to 3, on both
    // [/sparse-all-reduce]
    const at::Tensor& gradient = words->weight.grad();
    EXPECT_TRUE(at::equal(gradient.indices(), at::arange(4).view({1, 4})));
    EXPECT_TRUE(at::equal(gradient.values().select(1, 63), at::tensor({0.5F, 1.0F, 1.0F, 0.5F})));
  });
}

TEST(CollectivesGuide, TensorsAreMatchedByName) {
  treadle::test::TensorJob job({"trainer0", "trainer1"});
  job.onAll([&](treadle::Worker& worker) {
    auto group = treadle::ProcessGroup::make(worker, {"trainer0", "trainer1"});
    std::map<std::string, at::Tensor> gradients;
    for (int layer = 0; layer < 20; ++layer)
      gradients["layer" + std::to_string(layer)] = at::full({layer + 1}, 2.0 * layer + group.rank());
    // As each trainer's backward pass happens to yield them.
    std::vector<std::string> ready;
    for (const auto& [name, gradient] : gradients) ready.push_back(name);
    if (group.rank() == 1) std::reverse(ready.begin(), ready.end());
    // [pushpull]
    std::vector<treadle::Future<void>> averages;
    for (const std::string& name : ready)
      averages.push_back(treadle::pushPull(group, name, gradients.at(name), {.op = treadle::ReduceOp::kAverage}));
    treadle::whenAll(averages).wait();
    // [/pushpull]
    for (int layer = 0; layer < 20; ++layer)
      EXPECT_TRUE(at::equal(gradients["layer" + std::to_string(layer)], at::full({layer + 1}, 2.0 * layer + 0.5)));
  });
}

TEST(CheckpointGuide, ComesBackAsItWas) {
  std::string folder = std::filesystem::temp_directory_path() / "treadle-guide-XXXXXX";
  ASSERT_NE(::mkdtemp(folder.data()), nullptr);
  const std::string path = folder + "/model.safetensors";
  torch::nn::Linear linear(8, 2), other(8, 2);
  // [checkpoint]
  treadle::saveSafetensors(path, {{"linear.weight", linear->weight}, {"linear.bias", linear->bias}}, {{"epoch", "3"}});

  std::map<std::string, at::Tensor> loaded = treadle::loadSafetensors(path);
  torch::NoGradGuard noGradients;
  other->weight.copy_(loaded.at("linear.weight"));
  other->bias.copy_(loaded.at("linear.bias"));
  // [/checkpoint]
  EXPECT_TRUE(at::equal(other->weight, linear->weight));
  EXPECT_TRUE(at::equal(other->bias, linear->bias));
  EXPECT_EQ(treadle::loadSafetensorsMetadata(path).at("epoch"), "3");
  std::filesystem::remove_all(folder);
}

}  // namespace

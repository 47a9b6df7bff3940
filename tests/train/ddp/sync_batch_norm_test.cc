// SyncBatchNorm on several ranks computes what libtorch's BatchNorm does in one process on all ranks' samples.

#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <treadle/amp.h>
#include <treadle/nn.h>

#include <random>
#include <sstream>

#include "tests/train/ddp/net.h"

namespace treadle::test::sync_batch_norm_test {
namespace {

using namespace ddp_test;
using std::chrono::milliseconds;
using torch::nn::BatchNormOptions;

// A batch by rank: [counts[rank], channels, spatial...].
struct Shape {
  std::vector<int64_t> counts;
  int64_t channels;
  std::vector<int64_t> spatial;

  std::vector<int64_t> sizes(int64_t count) const {
    std::vector<int64_t> sizes = {count, channels};
    sizes.insert(sizes.end(), spatial.begin(), spatial.end());
    return sizes;
  }
};

// Each rank's samples have another mean and deviation.
at::Tensor batchOf(const Shape& shape, size_t rank, uint64_t step) {
  const auto r = static_cast<double>(rank);
  return random(shape.sizes(shape.counts[rank]), 7000 + 100 * step + rank) * (1 + r) + 3 * r;
}

at::Tensor coefficientsOf(const Shape& shape, size_t rank, uint64_t step) {
  return random(shape.sizes(shape.counts[rank]), 9000 + 100 * step + rank);
}

// The results of one rank, or of one process; undefined where there is none.
struct Results {
  at::Tensor output, inputGradient, weightGradient, biasGradient, runningMean, runningVar, batches;
};

template <class Norm>
void makeReady(Norm& norm) {
  norm.to(at::kDouble);
  const at::NoGradGuard noGrad;
  if (!norm.weight.defined()) return;
  norm.weight.copy_(random(norm.weight.sizes(), 1));
  norm.bias.copy_(random(norm.bias.sizes(), 2));
}

// Gradients add up over the steps, as running statistics do; output and input gradient are the last step's.
template <class Norm, class Batch, class Coefficients>
Results train(Norm& norm, uint64_t steps, Batch batch, Coefficients coefficients) {
  makeReady(norm);
  Results results;
  for (uint64_t step = 0; step < steps; ++step) {
    at::Tensor input = batch(step).requires_grad_();
    results.output = norm.forward(input);
    ((results.output * coefficients(step)).sum() + results.output.pow(3).sum() / 10).backward();
    results.inputGradient = input.grad();
  }
  if (norm.weight.defined()) results.weightGradient = norm.weight.grad(), results.biasGradient = norm.bias.grad();
  results.runningMean = norm.running_mean;
  results.runningVar = norm.running_var;
  results.batches = norm.num_batches_tracked;
  return results;
}

Results trainAlone(const Shape& shape, const BatchNormOptions& options, uint64_t steps) {
  auto joined = [&](auto of) {
    return [&shape, of](uint64_t step) {
      std::vector<at::Tensor> parts;
      for (size_t rank = 0; rank < shape.counts.size(); ++rank) parts.push_back(of(shape, rank, step));
      return at::cat(parts);
    };
  };
  auto run = [&](auto norm) { return train(*norm, steps, joined(batchOf), joined(coefficientsOf)); };
  if (shape.spatial.size() < 2) return run(torch::nn::BatchNorm1d(options));
  if (shape.spatial.size() == 2) return run(torch::nn::BatchNorm2d(options));
  return run(torch::nn::BatchNorm3d(options));
}

Results trainRank(Worker& worker, const Shape& shape, const BatchNormOptions& options, uint64_t steps) {
  SyncBatchNorm norm(options, worker, ProcessGroup::make(worker, ranks(static_cast<int>(shape.counts.size()))));
  const auto rank = static_cast<size_t>(worker.self().rank);
  auto ofRank = [&](auto of) { return [&shape, rank, of](uint64_t step) { return of(shape, rank, step); }; };
  return train(*norm, steps, ofRank(batchOf), ofRank(coefficientsOf));
}

void expectClose(const at::Tensor& actual, const at::Tensor& expected, const char* what) {
  if (!expected.defined()) {
    EXPECT_FALSE(actual.defined()) << what;
    return;
  }
  EXPECT_TRUE(close(actual, expected, 1e-12)) << what;
}

void expectEqualsOneProcess(const std::vector<Results>& all, const Results& alone) {
  std::vector<at::Tensor> outputs, inputGradients;
  at::Tensor weightGradient, biasGradient;
  for (const Results& one : all) {
    outputs.push_back(one.output);
    inputGradients.push_back(one.inputGradient);
    if (one.weightGradient.defined()) {
      weightGradient = weightGradient.defined() ? weightGradient + one.weightGradient : one.weightGradient;
      biasGradient = biasGradient.defined() ? biasGradient + one.biasGradient : one.biasGradient;
    }
    expectClose(one.runningMean, alone.runningMean, "running mean");
    expectClose(one.runningVar, alone.runningVar, "running variance");
    expectClose(one.batches, alone.batches, "number of batches");
    if (!alone.runningMean.defined()) continue;
    EXPECT_TRUE(at::equal(one.runningMean, all[0].runningMean) && at::equal(one.runningVar, all[0].runningVar))
        << "equal bits";
  }
  expectClose(at::cat(outputs), alone.output, "output");
  expectClose(at::cat(inputGradients), alone.inputGradient, "gradient of the input");
  expectClose(weightGradient, alone.weightGradient, "gradient of the weight");
  expectClose(biasGradient, alone.biasGradient, "gradient of the bias");
}

void expectEqualsOneProcess(TensorJob& job, const Shape& shape, const BatchNormOptions& options) {
  constexpr uint64_t kSteps = 3;
  std::ostringstream text;
  text << "counts " << shape.counts << ", " << shape.channels << " channels, spatial " << shape.spatial << ", affine "
       << options.affine() << ", running " << options.track_running_stats();
  SCOPED_TRACE(text.str());
  std::vector<Results> all(job.size());
  job.onAll([&](Worker& worker) {
    all[static_cast<size_t>(worker.self().rank)] = trainRank(worker, shape, options, kSteps);
  });
  expectEqualsOneProcess(all, trainAlone(shape, options, kSteps));
}

TEST(SyncBatchNorm, EqualsOneProcessForEachNumberOfDimensions) {
  for (const std::vector<int64_t>& counts : {std::vector<int64_t>{4}, {3, 3}, {5, 0, 2}, {1, 4, 0, 1, 3}}) {
    TensorJob job(ranks(static_cast<int>(counts.size())));
    for (const std::vector<int64_t>& spatial : {std::vector<int64_t>{}, {3}, {2, 3}, {2, 1, 3}})
      expectEqualsOneProcess(job, {counts, 3, spatial}, BatchNormOptions(3));
  }
}

TEST(SyncBatchNorm, EqualsOneProcessWithOtherOptions) {
  TensorJob job(ranks(2));
  const Shape shape{{3, 2}, 2, {2}};
  expectEqualsOneProcess(job, shape, BatchNormOptions(2).affine(false));
  expectEqualsOneProcess(job, shape, BatchNormOptions(2).track_running_stats(false));
  expectEqualsOneProcess(job, shape, BatchNormOptions(2).momentum(std::nullopt));
  expectEqualsOneProcess(job, shape, BatchNormOptions(2).momentum(0.7).eps(0.5));
}

TEST(SyncBatchNorm, EqualsOneProcessOnRandomShapes) {
  TensorJob job(ranks(3));
  for (uint64_t seed = 0; seed < 25; ++seed) {
    std::mt19937_64 engine(seed);
    auto upTo = [&](uint64_t most) { return static_cast<int64_t>(engine() % (most + 1)); };
    Shape shape{{upTo(4), upTo(4), 2 + upTo(4)}, 1 + upTo(4), {}};
    for (int64_t dims = upTo(3); dims > 0; --dims) shape.spatial.push_back(1 + upTo(3));
    BatchNormOptions options(shape.channels);
    options.affine(upTo(1) == 0).track_running_stats(upTo(1) == 0);
    if (upTo(1) == 0) options.momentum(std::nullopt);
    SCOPED_TRACE(seed);
    expectEqualsOneProcess(job, shape, options);
  }
}

// (f(x + h) - f(x - h)) / 2h for each value of each rank's input, f the sum of the ranks' losses.
TEST(SyncBatchNorm, GradientsAreThoseOfFiniteDifferences) {
  TensorJob job(ranks(2));
  const Shape shape{{2, 1}, 2, {2}};
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    SyncBatchNorm norm(2, worker, group);
    makeReady(*norm);
    const at::Tensor coefficients = coefficientsOf(shape, rank, 0);
    auto loss = [&](const at::Tensor& input) { return (norm->forward(input).pow(3) * coefficients).sum(); };
    at::Tensor input = batchOf(shape, rank, 0).requires_grad_();
    loss(input).backward();
    const at::NoGradGuard noGrad;
    for (size_t other = 0; other < 2; ++other)
      for (int64_t i = 0; i < shape.counts[other] * 4; ++i) {
        auto sumAt = [&](double step) {
          at::Tensor moved = input.detach().clone();
          if (rank == other) moved.view({-1})[i] += step;
          at::Tensor sum = loss(moved);
          allReduce(group, sum).wait();
          return sum.item<double>();
        };
        constexpr double kStep = 1e-5;
        const double slope = (sumAt(kStep) - sumAt(-kStep)) / (2 * kStep);
        if (rank != other) continue;
        EXPECT_NEAR(input.grad().view({-1})[i].item<double>(), slope, 1e-6) << rank << " " << i;
      }
  });
}

TEST(SyncBatchNorm, OneValueOnAllRanksTogetherIsAnErrorOnAll) {
  for (int size : {1, 3}) {
    TensorJob job(ranks(size));
    job.onAll([&](Worker& worker) {
      SyncBatchNorm norm(2, worker, ProcessGroup::make(worker, ranks(size)));
      const int64_t count = worker.self().rank == size - 1 ? 1 : 0;
      const std::string why = messageOf<ArgumentError>([&] { norm->forward(at::ones({count, 2})); });
      EXPECT_TRUE(contains(why, "one value for each channel"));
      EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
      EXPECT_TRUE(at::equal(norm->running_mean, at::zeros({2})));
    });
  }
}

TEST(SyncBatchNorm, NoValuesAnywhereLeaveTheBuffers) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    SyncBatchNorm norm(BatchNormOptions(2).momentum(std::nullopt), worker, ProcessGroup::make(worker, job.names()));
    at::Tensor input = at::ones({0, 2, 3}).requires_grad_(), output = norm->forward(input);
    EXPECT_EQ(output.sizes(), input.sizes());
    output.sum().backward();
    EXPECT_EQ(input.grad().sizes(), input.sizes());
    EXPECT_TRUE(at::equal(norm->weight.grad(), at::zeros({2})));
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 0);
    EXPECT_TRUE(at::equal(norm->running_var, at::ones({2})));
  });
}

// Rank 0's refused calls must not count: its next one meets the first one of rank 1.
TEST(SyncBatchNorm, RefusesWrongInputsBeforeAnythingIsSent) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    SyncBatchNorm norm(2, worker, group);
    auto refused = [&](const at::Tensor& input, const std::string& part) {
      EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { norm->forward(input); }), part));
    };
    if (worker.self().rank == 0) {
      refused(at::ones({2}), "[N, 2, ...], not [2]");
      refused(at::ones({3, 4, 2}), "[3, 4, 2]");
      refused(at::ones({1, 2, 1, 1, 1, 1}), "5 dimensions");
      refused(at::ones({3, 2}, at::kDouble), "weight has Float");
      refused(at::ones({3, 2}, at::kInt), "not CPUIntType");
      refused(at::ones({3, 2}).to_sparse(), "not SparseCPUFloatType");
      refused(at::Tensor(), "undefined");
    }
    norm->forward(at::full({3, 2}, 1.0 + worker.self().rank));
    EXPECT_TRUE(close(norm->running_mean, at::full({2}, 0.15), 1e-6));
    EXPECT_THROW(SyncBatchNorm(0, worker, group), ArgumentError);
    EXPECT_THROW(SyncBatchNorm(2, worker, ProcessGroup()), StateError);
  });
}

TEST(SyncBatchNorm, RanksWithOtherNumbersOfChannelsGetAnErrorOnAll) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int64_t channels = 2 + worker.self().rank;
    SyncBatchNorm norm(channels, worker, ProcessGroup::make(worker, job.names()));
    EXPECT_THROW(norm->forward(at::ones({3, channels})), ArgumentError);
  });
}

TEST(SyncBatchNorm, NamesTheRankThatDoesNotCallItAtTheTimeout) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const bool absent = worker.self().rank == 1;
    const ProcessGroup group = ProcessGroup::make(worker, job.names(), {.timeout = milliseconds(300)});
    SyncBatchNorm norm(2, worker, group);
    if (absent) return;
    EXPECT_TRUE(contains(messageOf<TimeoutError>([&] { norm->forward(at::ones({3, 2})); }), "rank1"));
  });
}

TEST(SyncBatchNorm, NamesTheRankWhoseBackwardPassDoesNotReachIt) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    SyncBatchNorm norm(2, worker, ProcessGroup::make(worker, job.names(), {.timeout = std::chrono::seconds(2)}));
    barrier(ProcessGroup::make(worker, job.names())).wait();  // the limit is for the backward pass alone
    at::Tensor output = norm->forward(random({3, 2}, 1).to(at::kFloat));
    if (worker.self().rank == 1) return;
    EXPECT_TRUE(contains(messageOf<TimeoutError>([&] { output.sum().backward(); }), "rank1"));
  });
}

TEST(SyncBatchNorm, EvaluationSendsNothing) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    const BatchNormOptions withoutRunning = BatchNormOptions(2).track_running_stats(false);
    SyncBatchNorm norm(2, worker, group), own(withoutRunning, worker, group);
    torch::nn::BatchNorm1d alone(2), aloneOwn(withoutRunning);
    auto input = [&](int rank) { return random({3, 2, 2}, static_cast<uint64_t>(rank)).to(at::kFloat); };
    norm->forward(input(worker.self().rank));
    alone->forward(at::cat({input(0), input(1)}));
    norm->eval(), own->eval(), alone->eval(), aloneOwn->eval();
    if (worker.self().rank == 1) return;  // one rank evaluates alone
    EXPECT_TRUE(close(norm->forward(input(5)), alone->forward(input(5)), 1e-5));
    EXPECT_TRUE(close(own->forward(input(5)), aloneOwn->forward(input(5)), 1e-5));
  });
}

// Nothing on rank 0 needs a gradient, and rank 1 waits for its sums all the same.
TEST(SyncBatchNorm, TheModuleDecidesWhetherBackwardCommunicates) {
  TensorJob job(ranks(2));
  const Shape shape{{2, 3}, 2, {}};
  const BatchNormOptions options = BatchNormOptions(2).affine(false);
  const Results alone = trainAlone(shape, options, 1);
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    SyncBatchNorm norm(options, worker, ProcessGroup::make(worker, job.names()));
    norm->to(at::kDouble);
    at::Tensor input = batchOf(shape, rank, 0).requires_grad_(rank == 1), output = norm->forward(input);
    EXPECT_TRUE(output.requires_grad());
    ((output * coefficientsOf(shape, rank, 0)).sum() + output.pow(3).sum() / 10).backward();
    EXPECT_EQ(input.grad().defined(), rank == 1);
    if (rank == 1) {
      EXPECT_TRUE(close(input.grad(), alone.inputGradient.slice(0, 2), 1e-12));
    }
    const at::NoGradGuard noGrad;
    EXPECT_FALSE(norm->forward(input).requires_grad());
  });
}

TEST(SyncBatchNorm, IsUsedTwiceInOnePass) {
  TensorJob job(ranks(2));
  const Shape shape{{2, 3}, 2, {}};
  auto run = [](auto& norm, const at::Tensor& first, const at::Tensor& second) {
    makeReady(*norm);
    const at::Tensor output = norm->forward(first);
    (output.pow(3).sum() + norm->forward(second + output).pow(4).sum()).backward();
  };
  auto joined = [&](uint64_t step) { return at::cat({batchOf(shape, 0, step), batchOf(shape, 1, step)}); };
  torch::nn::BatchNorm1d alone(2);
  const at::Tensor whole = joined(0).requires_grad_();
  run(alone, whole, joined(1));
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    SyncBatchNorm norm(2, worker, ProcessGroup::make(worker, job.names()));
    at::Tensor input = batchOf(shape, rank, 0).requires_grad_();
    run(norm, input, batchOf(shape, rank, 1));
    EXPECT_TRUE(close(input.grad(), rank == 0 ? whole.grad().slice(0, 0, 2) : whole.grad().slice(0, 2), 1e-11));
  });
}

// Their sums have as many numbers, so the gradients would be wrong without a word.
TEST(SyncBatchNorm, RanksWhosePassesMeetInOutputsOfDifferentCallsGetAnErrorOnAll) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    SyncBatchNorm norm(2, worker, ProcessGroup::make(worker, job.names()));
    auto output = [&](uint64_t seed) { return norm->forward(random({3, 2}, seed).to(at::kFloat)); };
    const at::Tensor first = output(1), second = output(2);
    const std::string why =
        messageOf<ArgumentError>([&] { (worker.self().rank == 1 ? second : first).sum().backward(); });
    EXPECT_TRUE(contains(why, "different forward calls"));
    EXPECT_FALSE(norm->weight.grad().defined());
    output(3).sum().backward();
    EXPECT_TRUE(norm->weight.grad().defined());
  });
}

TEST(SyncBatchNorm, AGraphMayBeKeptButHasNoSecondDerivative) {
  TensorJob job(ranks(1));
  SyncBatchNorm norm(2, job[0], ProcessGroup::make(job[0], job.names()));
  at::Tensor input = random({3, 2}, 1).to(at::kFloat).requires_grad_();
  at::Tensor loss = norm->forward(input).pow(3).sum();
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor once = input.grad().clone();
  loss.backward({}, /*retain_graph=*/true);
  EXPECT_TRUE(close(input.grad(), 2 * once, 1e-6));
  const std::string why = messageOf<ArgumentError>(
      [&] { torch::autograd::grad({loss}, {input}, {}, std::nullopt, /*create_graph=*/true); });
  EXPECT_TRUE(contains(why, "no second derivative"));
}

TEST(SyncBatchNorm, ComputesInFloat32ForSmallerTypes) {
  TensorJob job(ranks(2));
  const Shape shape{{4, 5}, 3, {4, 4}};
  const Results alone = trainAlone(shape, BatchNormOptions(3), 1);
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    for (auto [dtype, tolerance] : {std::pair(at::kFloat, 2e-5), {at::kHalf, 2e-2}, {at::kBFloat16, 1e-1}}) {
      SyncBatchNorm norm(3, worker, group);
      makeReady(*norm);
      norm->to(at::kFloat);
      at::Tensor input = batchOf(shape, rank, 0).to(dtype, false, false, at::MemoryFormat::ChannelsLast);
      at::Tensor output = norm->forward(input.requires_grad_());
      EXPECT_EQ(output.scalar_type(), dtype);
      EXPECT_TRUE(output.is_contiguous(at::MemoryFormat::ChannelsLast));
      at::Tensor exact = output.to(at::kDouble);
      ((exact * coefficientsOf(shape, rank, 0)).sum() + exact.pow(3).sum() / 10).backward();
      EXPECT_EQ(input.grad().scalar_type(), dtype);
      EXPECT_EQ(norm->weight.grad().scalar_type(), at::kFloat);
      const int64_t from = rank == 0 ? 0 : 4;
      auto expected = [&](const at::Tensor& whole) { return whole.slice(0, from, from + shape.counts[rank]); };
      EXPECT_TRUE(close(exact, expected(alone.output), tolerance)) << dtype;
      EXPECT_TRUE(close(input.grad().to(at::kDouble), expected(alone.inputGradient), tolerance)) << dtype;
      EXPECT_TRUE(close(norm->running_var.to(at::kDouble), alone.runningVar, 1e-2)) << dtype;
    }
    SyncBatchNorm norm(3, worker, group);
    norm->eval();
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16})
      EXPECT_EQ(norm->forward(batchOf(shape, rank, 0).to(dtype)).scalar_type(), dtype);
    norm->train();
    Autocast bfloat16(at::kBFloat16);
    EXPECT_EQ(norm->forward(batchOf(shape, rank, 0).to(at::kBFloat16)).scalar_type(), at::kBFloat16);
  });
}

TEST(SyncBatchNorm, IsAModuleLikeBatchNorm) {
  TensorJob job(ranks(1));
  const ProcessGroup group = ProcessGroup::make(job[0], job.names(), {.name = "trainers"});
  torch::nn::BatchNorm2d saved(3);
  saved->forward(at::rand({4, 3, 2, 2}));
  SyncBatchNorm norm(3, job[0], group);
  EXPECT_EQ(norm->group().options().name, "trainers.syncbn");
  loadState(*norm, stateOf(*saved));
  EXPECT_TRUE(at::equal(norm->running_var, saved->running_var));

  torch::nn::Sequential layers(norm);
  std::ostringstream text;
  norm->pretty_print(text);
  EXPECT_TRUE(contains(text.str(), "treadle::SyncBatchNorm(3, eps=1e-05, momentum=0.1, affine=true"));
  const at::Tensor input = at::rand({4, 3, 2, 2});
  auto copy = std::dynamic_pointer_cast<SyncBatchNormImpl>(norm->clone());
  EXPECT_TRUE(close(copy->forward(input), layers->forward(input), 1e-6));
  EXPECT_FALSE(copy->weight.is_same(norm->weight));
}

struct NormedNetImpl : torch::nn::Module {
  // Without a worker: one process.
  explicit NormedNetImpl(uint64_t seed, Worker* worker = nullptr, const ProcessGroup& group = {}) {
    first = register_parameter("first", random({5, 7}, seed));
    last = register_parameter("last", random({7, 3}, seed + 1));
    if (worker) {
      synced = register_module("norm", SyncBatchNorm(7, *worker, group));
    } else {
      alone = register_module("norm", torch::nn::BatchNorm1d(7));
    }
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& input) {
    const at::Tensor hidden = input.mm(first);
    return at::tanh(synced ? synced->forward(hidden) : alone->forward(hidden)).mm(last);
  }
  at::Tensor first, last;
  SyncBatchNorm synced = nullptr;
  torch::nn::BatchNorm1d alone = nullptr;
};
TORCH_MODULE(NormedNet);

at::Tensor wholeBatch(int size, int step) {
  std::vector<at::Tensor> inputs;
  for (int rank = 0; rank < size; ++rank) inputs.push_back(inputOf(rank, step));
  return at::cat(inputs);
}

void expectSameState(NormedNet& net, NormedNet& alone, int rank) {
  for (const auto& entry : alone->named_parameters())
    EXPECT_TRUE(close(net->named_parameters()[entry.key()], entry.value())) << entry.key() << " on " << rank;
  for (const auto& entry : alone->named_buffers())
    EXPECT_TRUE(close(net->named_buffers()[entry.key()], entry.value())) << entry.key() << " on " << rank;
}

TEST(SyncBatchNorm, TrainingInDistributedDataParallelEqualsOneProcess) {
  constexpr int kSteps = 6;
  for (int size : {1, 2, 3, 5}) {
    NormedNet alone(0);
    torch::optim::SGD optimizer(alone->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (int step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      alone->forward(wholeBatch(size, step)).square().mean().backward();
      optimizer.step();
    }
    TensorJob job(ranks(size));
    std::vector<at::Tensor> trained(static_cast<size_t>(size));
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      const ProcessGroup group = ProcessGroup::make(worker, job.names());
      NormedNet net(static_cast<uint64_t>(rank), &worker, group);
      DistributedDataParallel<NormedNet> ddp(net, group, smallBuckets());
      torch::optim::SGD own(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (int step = 0; step < kSteps; ++step) {
        own.zero_grad();
        ddp.forward(inputOf(rank, step)).square().mean().backward();
        own.step();
      }
      expectSameState(net, alone, rank);
      std::vector<at::Tensor> all;
      for (const at::Tensor& one : net->parameters()) all.push_back(one.detach().flatten());
      for (const at::Tensor& one : net->buffers()) all.push_back(one.flatten());
      trained[static_cast<size_t>(rank)] = at::cat(all);
    });
    for (const at::Tensor& one : trained) EXPECT_TRUE(at::equal(one, trained[0])) << "equal bits";
  }
}

TEST(SyncBatchNorm, TakesPartInPassesThatAreNotAveraged) {
  TensorJob job(ranks(2));
  NormedNet alone(0);
  for (int step = 0; step < 3; ++step) alone->forward(wholeBatch(2, step)).square().mean().backward();
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    NormedNet net(0, &worker, group);
    DistributedDataParallel<NormedNet> ddp(net, group);
    {
      auto unaveraged = ddp.noSync();
      for (int step = 0; step < 2; ++step) ddp.forward(inputOf(rank, step)).square().mean().backward();
    }
    ddp.forward(inputOf(rank, 2)).square().mean().backward();
    expectSameState(net, alone, rank);
    for (const auto& entry : alone->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[entry.key()].grad(), entry.value().grad())) << entry.key();
  });
}

TEST(SyncBatchNorm, WorksInDistributedPasses) {
  constexpr int kSize = 3;
  TensorJob job(ranks(kSize));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    NormedNet net(0, &worker, group), whole(0);
    DistributedDataParallel<NormedNet> ddp(net, group, smallBuckets());
    for (int step = 0; step < 3; ++step) {
      AutogradContext context(worker);
      context.backward({ddp.forward(inputOf(rank, step)).square().mean()});
      whole->zero_grad();
      whole->forward(wholeBatch(kSize, step)).square().mean().backward();
      for (const auto& entry : whole->named_parameters()) {
        const at::Tensor parameter = net->named_parameters()[entry.key()];
        EXPECT_TRUE(close(context.gradient(parameter), entry.value().grad())) << entry.key() << " step " << step;
      }
      EXPECT_EQ(context.gradients().size(), net->parameters().size()) << "nothing but parameters has a gradient";
    }
    expectSameState(net, whole, rank);
  });
}

TEST(SyncBatchNorm, ADistributedPassNamesTheRankWhosePassDoesNotReachIt) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    SyncBatchNorm norm(2, worker, ProcessGroup::make(worker, job.names(), {.timeout = std::chrono::seconds(2)}));
    barrier(ProcessGroup::make(worker, job.names())).wait();  // the limit is for the backward pass alone
    AutogradContext context(worker);
    at::Tensor output = norm->forward(random({3, 2}, 1).to(at::kFloat));
    if (worker.self().rank == 1) return;
    EXPECT_TRUE(contains(messageOf<TimeoutError>([&] { context.backward({output.sum()}); }), "rank1"));
  });
}

}  // namespace
}  // namespace treadle::test::sync_batch_norm_test

// Sparse gradients beside what else DistributedDataParallel has: hooks, uneven inputs, clipping, loss scales, several
// modules, local SGD.

#include <torch/optim/sgd.h>

#include <limits>
#include <memory>
#include <optional>

#include "tests/train/ddp/tables.h"
#include "treadle/optim.h"
#include "treadle/train/ddp/grad_scaler.h"

namespace treadle::test::sparse_beside_test {
namespace {

using namespace sparse_test;

enum class Hooks { kCast, kTopK, kPowerSgd };

std::shared_ptr<CommHook> made(Hooks kind) {
  switch (kind) {
    case Hooks::kCast: return std::make_shared<CastHook>(at::kHalf);
    case Hooks::kTopK: return std::make_shared<TopKHook>(TopKOptions{.ratio = 0.1});
    case Hooks::kPowerSgd: break;
  }
  return std::make_shared<PowerSgdHook>(PowerSgdOptions{.startAfter = 0});
}

class SparseBesideHooks : public ::testing::TestWithParam<Hooks> {};

// Sparse gradients are not compressed, and nothing of them is held back. Dense ones are as the hook has them.
TEST_P(SparseBesideHooks, AreAveragedAsTheyAre) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Tables net(/*isSparse=*/true), alone(/*isSparse=*/false);
    const auto hook = made(GetParam());
    DistributedDataParallel<Tables> ddp(net, ProcessGroup::make(worker, job.names()), smallBucketsWith(hook));
    bool isCompressed = false;
    for (int step = 0; step < 4; ++step) {
      net->zero_grad();
      net->loss(rank, step).backward();
      meanOfAll(*alone, 2, step);
      for (const std::string name : {"words.weight", "bags.weight", "rare.weight"}) {
        const at::Tensor wanted = alone->named_parameters()[name].grad();
        expectGradient(net->named_parameters()[name].grad(), wanted, /*isSparse=*/true);
      }
      isCompressed = isCompressed || !close(net->first.grad(), alone->first.grad(), 1e-12);
    }
    EXPECT_TRUE(isCompressed);
    if (const auto memory = std::dynamic_pointer_cast<ErrorFeedbackHook>(hook)) {
      const OptimizerState state = memory->state();
      size_t errors = 0;
      for (const auto& [name, tensor] : state) {
        if (name.find("error.") == std::string::npos) continue;
        EXPECT_EQ(name.find("weight"), std::string::npos) << name;
        ++errors;
      }
      EXPECT_GT(errors, 0U);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, SparseBesideHooks, ::testing::Values(Hooks::kCast, Hooks::kTopK, Hooks::kPowerSgd),
                         [](const auto& info) {
                           return info.param == Hooks::kCast   ? "Cast"
                                  : info.param == Hooks::kTopK ? "TopK"
                                                               : "PowerSgd";
                         });

class ErrorsHeldBack : public ::testing::TestWithParam<Hooks> {};

// A memory stays as it is while averages are sparse, and while a dense one goes outside of a bucket, where it was
// expected to be sparse. Then it goes on: what the ranks get and hold back is what they have and held back before.
TEST_P(ErrorsHeldBack, StayWhereAveragesAreSparse) {
  const std::vector<std::string> passes = {"dd", "dd", "ss", "ss", "dd", "dd", "sd", "ss", "sn", "sd", "ds"};
  const std::string isCompressed = "yy---yy---y";
  const std::string kind = GetParam() == Hooks::kTopK ? "top_k" : "power_sgd";
  TensorJob job(ranks(2));
  std::vector<std::vector<at::Tensor>> errors(2), averages(2);  // by rank and pass
  job.onAll([&](Worker& worker) {
    DdpOptions options;
    const auto hook = std::dynamic_pointer_cast<ErrorFeedbackHook>(made(GetParam()));
    options.hook = hook;
    Replica own(worker, 2, options);
    const auto rank = static_cast<size_t>(own.rank);
    OptimizerState before;
    for (int step = 0; step < static_cast<int>(passes.size()); ++step) {
      const std::string& kinds = passes[static_cast<size_t>(step)];
      SCOPED_TRACE(kinds + " in " + std::to_string(step));
      own.net->zero_grad();
      own.backward(kinds, step);
      const at::Tensor mean = sumOfAll(kinds, step) / 2;
      OptimizerState state = hook->state();
      if (isCompressed[static_cast<size_t>(step)] == 'y') {
        EXPECT_FALSE(close(own.grad(), mean, 1e-3));
      } else {
        expectGradient(own.grad(), mean, isSparseOnAll(kinds));
        for (const std::string name : {".error.weight", ".q.weight"}) {
          if (name == ".q.weight" && GetParam() == Hooks::kTopK) continue;
          EXPECT_TRUE(haveEqualBits(state.at(kind + name), before.at(kind + name))) << name;
        }
      }
      errors[rank].push_back(state.at(kind + ".error.weight").clone());
      averages[rank].push_back(denseOf(own.grad()).clone());
      before.clear();
      for (const auto& [name, tensor] : state) before.insert_or_assign(name, tensor.clone());
    }
  });
  expectEqualBits(averages[0], averages[1]);
  at::Tensor held = at::zeros({kRows, kWidth}, at::kDouble);
  for (size_t step = 0; step < passes.size(); ++step) {
    const at::Tensor all = sumOfAll(passes[step], static_cast<int>(step)) + held;
    held = errors[0][step].to(at::kDouble) + errors[1][step].to(at::kDouble);
    EXPECT_TRUE(close(averages[0][step] * 2 + held, all, 1e-5)) << step;
    EXPECT_FALSE(close(held, at::zeros_like(held), 1e-3)) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ErrorsHeldBack, ::testing::Values(Hooks::kTopK, Hooks::kPowerSgd),
                         [](const auto& info) { return info.param == Hooks::kTopK ? "TopK" : "PowerSgd"; });

// The average in two rounds.
class ByParts final : public CommHook {
 public:
  std::string description() const override { return "ByParts"; }
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override {
    at::Tensor parts = at::empty({exchange.group().size(), bucket.flat.numel()}, bucket.flat.options());
    co_await exchange.round(allGather(exchange.group(), bucket.flat, parts));
    at::Tensor sum = parts.sum(0);
    co_await exchange.round(allReduce(exchange.group(), sum, ReduceOp::kAverage));
    bucket.flat.copy_(sum / exchange.group().size());
  }
};

// Tables beside a network one of whose gradients comes again when its bucket has gone, and buffers.
struct TurningImpl : torch::nn::Module {
  explicit TurningImpl(bool isSparse)
      : net(register_module("net", Net(0))), table(register_module("table", Table(isSparse))) {}
  at::Tensor loss(char kind, int rank, int step) {
    return lossThatComesTwice(net, rank, step) + table->loss(kind, rank, step);
  }
  Net net;
  Table table;
};
TORCH_MODULE(Turning);

// The longest order of operations: rounds that go on, a bucket that goes again, sparse sums, buffers, and more rounds.
TEST(SparseGradientsWith, BucketsThatGoAgainInTwoRoundsAreAveraged) {
  const std::vector<std::string> passes = {"ss", "ss", "sd", "se", "ss"};
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Turning own(/*isSparse=*/true), alone(/*isSparse=*/false);
    DdpOptions options = smallBucketsWith(std::make_shared<ByParts>());
    options.buffers = Buffers::kAverage;
    DistributedDataParallel<Turning> ddp(own, ProcessGroup::make(worker, job.names()), options);
    const at::Tensor offset = own->net->offset.clone();
    for (int step = 0; step < static_cast<int>(passes.size()); ++step) {
      const std::string& kinds = passes[static_cast<size_t>(step)];
      SCOPED_TRACE(kinds + " in " + std::to_string(step));
      own->zero_grad();
      alone->zero_grad();
      for (int each = 0; each < 2; ++each) alone->loss(kinds[static_cast<size_t>(each)], each, step).div(2).backward();
      own->net->offset.copy_(offset + rank * 2);
      own->loss(kinds[static_cast<size_t>(rank)], rank, step).backward();
      for (const auto& entry : alone->named_parameters())
        expectGradient(own->named_parameters()[entry.key()].grad(), entry.value().grad(),
                       entry.key() == "table.weight" && isSparseOnAll(kinds));
      EXPECT_TRUE(close(own->net->offset, offset + 1));
    }
  });
}

// Rank 1 uses the modules in the other order. They change their layouts in different passes.
TEST(SparseGradientsWith, SeveralModulesInAPassAreAveraged) {
  const std::vector<std::string> ofA = {"ss", "ss", "sd", "st", "ss", "sn"}, ofB = {"ds", "ss", "ss", "sd", "en", "ss"};
  TensorJob job(ranks(2));
  for (const bool isDistributed : {false, true})
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      BesideTable a(/*isSparse=*/true), b(/*isSparse=*/true);
      DistributedDataParallel<BesideTable> ddpA(a, ProcessGroup::make(worker, job.names()), smallBuckets());
      DistributedDataParallel<BesideTable> ddpB(b, ProcessGroup::make(worker, job.names()), smallBuckets());
      for (int step = 0; step < static_cast<int>(ofA.size()); ++step) {
        const auto place = static_cast<size_t>(step);
        SCOPED_TRACE(ofA[place] + " and " + ofB[place]);
        a->zero_grad();
        b->zero_grad();
        const at::Tensor lossA = a->loss(ofA[place][static_cast<size_t>(rank)], rank, step);
        const at::Tensor lossB = b->loss(ofB[place][static_cast<size_t>(rank)], rank, step);
        const at::Tensor loss = rank == 1 ? lossB + lossA : lossA + lossB;
        std::optional<AutogradContext> context;
        if (isDistributed) context.emplace(worker);
        isDistributed ? context->backward({loss}) : loss.backward();
        const auto gradientOf = [&](const at::Tensor& parameter) {
          return isDistributed ? context->gradient(parameter) : parameter.grad();
        };
        for (const auto& [net, kinds] : {std::pair(a, ofA[place]), std::pair(b, ofB[place])}) {
          const bool isSparse = kinds != "st" && isSparseOnAll(kinds);
          expectGradient(gradientOf(net->table->weight), sumOfAll(kinds, step) / 2, isSparse);
          BesideTable alone(/*isSparse=*/false);
          for (int each = 0; each < 2; ++each) alone->backward('n', each, step, 2);
          EXPECT_TRUE(close(gradientOf(net->beside), alone->beside.grad(), 1e-12));
        }
      }
    });
}

// Rank 1 has fewer batches.
TEST(SparseGradientsWith, UnevenInputsTrainAsOneProcess) {
  const Counts counts = {5, 3};
  std::vector<std::vector<at::Tensor>> ofRanks(2);
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Tables net(/*isSparse=*/true);
    DdpOptions options = smallBuckets();
    options.divisor = Divisor::kActiveRanks;
    DistributedDataParallel<Tables> ddp(net, ProcessGroup::make(worker, job.names()), options);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    auto join = ddp.join([&] { optimizer.step(); });
    for (int step = 0; step < counts[static_cast<size_t>(rank)]; ++step) {
      optimizer.zero_grad();
      net->loss(rank, step).backward();
      optimizer.step();
    }
    join.finish();
    ofRanks[static_cast<size_t>(rank)] = valuesOf(*net);
  });
  Tables alone(/*isSparse=*/false);
  torch::optim::SGD optimizer(alone->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < counts[0]; ++step) {
    meanOfAll(*alone, step < counts[1] ? 2 : 1, step);
    optimizer.step();
  }
  expectTrainedAs(valuesOf(*alone), ofRanks);
}

TEST(SparseGradientsWith, ClippingHaveTheNormOfDenseOnes) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Tables net(/*isSparse=*/true), alone(/*isSparse=*/false);
    DistributedDataParallel<Tables> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    net->loss(worker.self().rank, 1).backward();
    meanOfAll(*alone, 2, 1);
    const double norm = clipGradNorm(*net, 0.01), wanted = clipGradNorm(*alone, 0.01);
    EXPECT_NEAR(norm, wanted, 1e-12);
    EXPECT_GT(norm, 0.01);
    for (const auto& entry : alone->named_parameters()) {
      if (!entry.value().grad().defined()) continue;
      EXPECT_TRUE(close(denseOf(net->named_parameters()[entry.key()].grad()), entry.value().grad(), 1e-12));
    }
  });
}

// Powers of two change no bit, and what is infinite on rank 1 skips the step on both.
TEST(SparseGradientsWith, ALossScaleAreTheSame) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Tables net(/*isSparse=*/true), scaled(/*isSparse=*/true);
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    DistributedDataParallel<Tables> ddp(net, group), ddpScaled(scaled, ProcessGroup::make(worker, job.names()));
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    torch::optim::SGD optimizerScaled(scaled->parameters(), torch::optim::SGDOptions(0.1));
    GradScaler scaler(group, {.initialScale = 64});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      optimizerScaled.zero_grad();
      net->loss(rank, step).backward();
      optimizer.step();
      scaler.scale(scaled->loss(rank, step)).backward();
      EXPECT_TRUE(scaler.step(optimizerScaled));
      scaler.update();
      expectEqualBits(valuesOf(*scaled), valuesOf(*net));
    }
    optimizerScaled.zero_grad();
    const at::Tensor row = scaled->rare->forward(at::tensor({3}, at::kLong));
    scaler.scale((row * (rank == 1 ? std::numeric_limits<double>::infinity() : 1)).sum()).backward();
    EXPECT_FALSE(scaler.step(optimizerScaled));
    expectEqualBits(valuesOf(*scaled), valuesOf(*net));
  });
}

// A mean of parameters that each rank has stepped by its own rows.
TEST(SparseGradientsWith, LocalSgdAreSteppedBetweenMeans) {
  std::vector<std::vector<at::Tensor>> ofRanks(2);
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Tables net(/*isSparse=*/true);
    DistributedDataParallel<Tables> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    ddp::LocalSgd local = ddp.localSgd({.period = 2, .startAfter = 1});
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      net->loss(worker.self().rank, step).backward();
      optimizer.step();
      local.step();
    }
    local.finish();
    ofRanks[static_cast<size_t>(worker.self().rank)] = valuesOf(*net);
  });
  std::vector<std::vector<at::Tensor>> simulated;
  for (int rank = 0; rank < 2; ++rank) {
    Tables net(/*isSparse=*/false);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    meanOfAll(*net, 2, 0);
    optimizer.step();
    for (int step = 1; step < 3; ++step) {
      net->zero_grad();
      net->loss(rank, step).backward();
      optimizer.step();
    }
    simulated.push_back(valuesOf(*net));
  }
  for (size_t i = 0; i < simulated[0].size(); ++i) simulated[0][i] = (simulated[0][i] + simulated[1][i]) / 2;
  expectTrainedAs(simulated[0], ofRanks);
}

}  // namespace
}  // namespace treadle::test::sparse_beside_test

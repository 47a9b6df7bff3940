// PowerSGD against its equations in one process, with libtorch's QR in float64: nothing is lost, nothing is kept of
// passes that fail or overflow, and all ranks have the same bits.

#include <ATen/ops/linalg_qr.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <stdexcept>

#include "tests/support/expect_error.h"
#include "tests/support/seeds.h"
#include "tests/train/ddp/hooks.h"

namespace treadle::test::power_sgd_hook_test {
namespace {

using namespace ddp_test;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

DdpOptions with(std::shared_ptr<CommHook> hook) {
  return {.buckets = {.firstBytes = 256, .bytes = 1024}, .hook = std::move(hook)};
}

std::shared_ptr<PowerSgdHook> ofRank(int64_t rank, double rate = 1, int64_t startAfter = 0) {
  return std::make_shared<PowerSgdHook>(
      PowerSgdOptions{.rank = rank, .startAfter = startAfter, .minCompressionRate = rate});
}

// A matrix, one of four dimensions, a vector, a matrix that is too thin, and another matrix.
const Shapes kShapes = {{12, 20}, {8, 3, 2, 2}, {17}, {40, 1}, {9, 30}};
const std::vector<size_t> kMatrices = {0, 1, 4};

std::vector<at::Tensor> gradientsOf(int rank, int step, at::ScalarType dtype = at::kDouble) {
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < kShapes.size(); ++i)
    gradients.push_back(
        random(kShapes[i], 1000 * static_cast<uint64_t>(step) + 10 * i + static_cast<uint64_t>(rank)).to(dtype));
  return gradients;
}

std::string nameOf(const std::string& kind, size_t parameter) {
  return "power_sgd." + kind + "." + std::to_string(parameter);
}

at::Tensor errorOf(const OptimizerState& state, size_t parameter) {
  const auto found = state.find(nameOf("error", parameter));
  return found != state.end() ? found->second : at::zeros(kShapes[parameter], at::kDouble);
}

// One matrix on all ranks, by the equations.
struct Model {
  at::Tensor q;  // [m, k]
  std::vector<at::Tensor> errors;

  at::Tensor step(const std::vector<at::Tensor>& gradients) {
    const auto ranks = static_cast<int64_t>(gradients.size());
    std::vector<at::Tensor> sums;
    at::Tensor p = at::zeros({gradients[0].size(0), q.size(1)}, at::kDouble), mean = at::zeros_like(q);
    for (size_t rank = 0; rank < gradients.size(); ++rank) {
      sums.push_back(gradients[rank] + errors[rank]);
      p += sums.back().mm(q);
    }
    p = std::get<0>(at::linalg_qr(p));
    for (size_t rank = 0; rank < gradients.size(); ++rank) {
      const at::Tensor own = sums[rank].t().mm(p);
      mean += own / ranks;
      errors[rank] = sums[rank] - p.mm(own.t());
    }
    q = mean;
    return p.mm(mean.t());
  }
};

class PowerSgd : public ::testing::TestWithParam<int> {};

TEST_P(PowerSgd, FollowsItsEquationsOnEachRank) {
  constexpr int kSize = 3, kSteps = 8;
  const int64_t rank = GetParam();
  TensorJob job(ranks(kSize));
  std::vector<std::vector<std::vector<at::Tensor>>> averages(kSize);
  std::vector<std::vector<OptimizerState>> states(kSize);
  job.onAll([&](Worker& worker) {
    const auto own = static_cast<size_t>(worker.self().rank);
    const auto hook = ofRank(rank);
    Weights weights(kShapes, at::kDouble);
    DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), with(hook));
    states[own].push_back(hook->state());
    for (int step = 0; step < kSteps; ++step) {
      averages[own].push_back(averageOf(*weights, gradientsOf(worker.self().rank, step)));
      states[own].push_back(hook->state());
    }
  });
  for (size_t i = 0; i < kShapes.size(); ++i) {
    const bool isMatrix = std::find(kMatrices.begin(), kMatrices.end(), i) != kMatrices.end();
    EXPECT_EQ(states[0].front().contains(nameOf("q", i)), isMatrix) << i;
    const auto rankZero = states[0].front().find(nameOf("q", i));
    const int64_t n = kShapes[i][0];
    Model model;
    if (isMatrix) {
      model.q = rankZero->second;
      model.errors.assign(kSize, at::zeros({n, model.q.size(0)}, at::kDouble));
    }
    for (size_t step = 0; step < kSteps; ++step) {
      std::vector<at::Tensor> gradients;
      at::Tensor mean = at::zeros(kShapes[i], at::kDouble);
      for (int each = 0; each < kSize; ++each) {
        const at::Tensor gradient = gradientsOf(each, static_cast<int>(step))[i];
        mean += gradient / kSize;
        gradients.push_back(gradient.view({n, -1}));
      }
      const at::Tensor expected = isMatrix ? model.step(gradients).view(kShapes[i]) : mean;
      EXPECT_TRUE(close(averages[0][step][i], expected, 1e-9)) << i << " in " << step;
      for (size_t each = 0; each < kSize; ++each) {
        EXPECT_TRUE(haveEqualBits(averages[each][step][i], averages[0][step][i]));
        if (!isMatrix) continue;
        EXPECT_TRUE(close(errorOf(states[each][step + 1], i).view({n, -1}), model.errors[each], 1e-9));
        EXPECT_TRUE(haveEqualBits(states[each][step + 1].at(nameOf("q", i)), states[0][step + 1].at(nameOf("q", i))));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, PowerSgd, ::testing::Values(1, 2, 4));

// sum_t average(t) + mean_r e_r(T) = sum_t mean_r g_r(t), through buckets that are planned anew, passes that are not
// averaged, parameters that no rank uses, weights, and a rank without a batch.
TEST(PowerSgdHook, LosesNothing) {
  constexpr int kSize = 2, kSteps = 12;
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    TensorJob job(ranks(kSize));
    std::vector<at::Tensor> sent, had;
    std::vector<OptimizerState> states(kSize);
    for (const auto& shape : kShapes) {
      sent.push_back(at::zeros(shape, at::kDouble));
      had.push_back(at::zeros(shape, at::kDouble));
    }
    const auto gradientsIn = [&](int rank, int step) {
      std::vector<at::Tensor> gradients = gradientsOf(rank, step, dtype);
      if (step % 4 == 2) gradients[1].reset();
      return gradients;
    };
    const auto weightOf = [](int rank, int step) { return step == 3 && rank == 1 ? 0 : 1 + (rank + step) % 3; };
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      const auto hook = ofRank(2);
      Weights weights(kShapes, dtype);
      DdpOptions options = with(hook);
      options.divisor = Divisor::kWeights;
      DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), options);
      for (int step = 0; step < kSteps; ++step) {
        std::optional<ddp::NoSync> unaveraged;
        if (step % 3 == 1) unaveraged.emplace(ddp.noSync());
        if (weightOf(rank, step) == 0) {
          ddp.skipPass();
        } else {
          ddp.setWeight(weightOf(rank, step));
          weights->loss(gradientsIn(rank, step)).backward();
        }
        if (unaveraged) continue;
        double sum = 0;
        for (int each = 0; each < kSize; ++each)
          for (int pass = step % 3 == 2 ? step - 1 : step; pass <= step; ++pass) sum += weightOf(each, pass);
        for (size_t i = 0; i < kShapes.size(); ++i)
          if (rank == 0 && weights->all[i].grad().defined())
            sent[i] += weights->all[i].grad().to(at::kDouble) * sum / kSize;
        weights->zero_grad();
      }
      states[static_cast<size_t>(rank)] = hook->state();
    });
    for (int each = 0; each < kSize; ++each)
      for (int step = 0; step < kSteps; ++step)
        for (size_t i = 0; i < kShapes.size(); ++i)
          if (const at::Tensor gradient = gradientsIn(each, step)[i]; gradient.defined() && weightOf(each, step) > 0)
            had[i] += gradient.to(at::kDouble) / kSize;
    for (size_t i = 0; i < kShapes.size(); ++i) {
      for (const OptimizerState& state : states) sent[i] += errorOf(state, i).to(at::kDouble) / kSize;
      const double tolerance = dtype == at::kDouble ? 1e-10 : dtype == at::kFloat ? 1e-4 : 0.2;
      EXPECT_TRUE(close(sent[i], had[i], tolerance)) << i << " of " << c10::toString(dtype);
    }
  }
}

// A bucket that goes again is compressed again, and what the first time held back is forgotten.
TEST(PowerSgdHook, LosesNothingOfGradientsThatComeTwiceInAPass) {
  constexpr int kSteps = 4;
  TensorJob job(ranks(2));
  Net alone(0);
  for (int step = 0; step < kSteps; ++step)
    for (int each = 0; each < 2; ++each) lossThatComesTwice(alone, each, step).div(2).backward();
  job.onAll([&](Worker& worker) {
    const auto hook = ofRank(1);
    Net net(0);
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    DistributedDataParallel<Net> ddp(net, group, with(hook));
    at::Tensor sent = at::zeros({7, 7}, at::kDouble);
    for (int step = 0; step < kSteps; ++step) {
      net->zero_grad();
      lossThatComesTwice(net, worker.self().rank, step).backward();
      sent += net->skipped.grad();
    }
    at::Tensor held = hook->state().at("power_sgd.error.skipped");
    allReduce(group, held, ReduceOp::kAverage).wait();
    EXPECT_TRUE(close(sent + held, alone->skipped.grad(), 1e-12));
    EXPECT_GT(held.norm().item<double>(), 1e-3);
  });
}

// A few units in the last place for each of the three products.
TEST(PowerSgdHook, OfFullRankIsAveraging) {
  constexpr int kSize = 3;
  TensorJob job(ranks(kSize));
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat})
    job.onAll([&](Worker& worker) {
      Weights weights(kShapes, dtype);
      DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), with(ofRank(100, 0)));
      for (int step = 0; step < 4; ++step) {
        const std::vector<at::Tensor> averages = averageOf(*weights, gradientsOf(worker.self().rank, step, dtype));
        for (size_t i = 0; i < kShapes.size(); ++i) {
          at::Tensor mean = at::zeros(kShapes[i], at::kDouble);
          for (int each = 0; each < kSize; ++each) mean += gradientsOf(each, step, dtype)[i].to(at::kDouble) / kSize;
          const double epsilon =
              dtype == at::kDouble ? std::numeric_limits<double>::epsilon() : std::numeric_limits<float>::epsilon();
          const double distance = (averages[i].to(at::kDouble) - mean).norm().item<double>();
          EXPECT_LE(distance, 32 * epsilon * mean.norm().item<double>() * std::sqrt(mean.size(0))) << i;
        }
      }
    });
}

TEST(PowerSgdHook, AveragesTheFirstPassesAsTheyAre) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto hook = ofRank(1, 1, 3);
    Weights weights(kShapes, at::kDouble), plain(kShapes, at::kDouble);
    DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), with(hook));
    DistributedDataParallel<Weights> other(plain, ProcessGroup::make(worker, job.names()), with(nullptr));
    for (int step = 0; step < 5; ++step) {
      const auto gradients = gradientsOf(worker.self().rank, step);
      const auto averages = averageOf(*weights, gradients), expected = averageOf(*plain, gradients);
      EXPECT_EQ(haveEqualBits(averages[0], expected[0]), step < 3) << step;
      EXPECT_EQ(hook->state().contains(nameOf("error", 0)), step >= 3);
    }
    EXPECT_EQ(hook->state().at("power_sgd.passes").item<int64_t>(), 5);
  });
}

// One rank has an infinity in a matrix, or in a vector; or its pass fails. The next pass is as if that had not been.
TEST(PowerSgdHook, KeepsNothingOfPassesThatOverflowOrFail) {
  constexpr int kSize = 2, kSteps = 6;
  TensorJob job(ranks(kSize));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const auto hook = ofRank(2), undisturbed = ofRank(2);
    Weights weights(kShapes), other(kShapes);
    DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), with(hook));
    DistributedDataParallel<Weights> expected(other, ProcessGroup::make(worker, job.names()), with(undisturbed));
    for (int step = 0; step < kSteps; ++step) {
      const auto gradients = gradientsOf(rank, step, at::kFloat);
      const OptimizerState before = hook->state();
      auto disturbed = gradientsOf(rank, step, at::kFloat);
      const size_t where = step % 2 == 0 ? 4 : 2;
      const float number = step % 3 == 0 ? kInfinity : step % 3 == 1 ? -kInfinity : std::nanf("");
      if (rank == step % kSize) disturbed[where].view({-1})[5] = number;
      const std::vector<at::Tensor> averages = averageOf(*weights, disturbed);
      EXPECT_FALSE(averages[where].isfinite().all().item<bool>());
      if (where == 4) {
        EXPECT_TRUE(averages[where].isinf().all().item<bool>());
      }
      EXPECT_TRUE(averages[0].isfinite().all().item<bool>());
      bool fails = rank == step % kSize;
      const unsigned key = weights->all[1].register_hook([&](const at::Tensor&) {
        if (fails) throw std::runtime_error("a bad batch");
      });
      EXPECT_THROW(averageOf(*weights, gradients), std::exception);
      weights->all[1].remove_hook(key);
      OptimizerState after = hook->state();
      for (const auto& [name, tensor] : before)
        if (name != "power_sgd.passes") {
          EXPECT_TRUE(haveEqualBits(tensor, after.at(name))) << name;
        }
      const auto good = averageOf(*weights, gradients), alike = averageOf(*other, gradients);
      for (size_t i = 0; i < kShapes.size(); ++i) EXPECT_TRUE(haveEqualBits(good[i], alike[i])) << i << " " << step;
    }
  });
}

// Q would be 0 for ever if it were the product with a gradient of zeros.
TEST(PowerSgdHook, GoesOnAfterGradientsOfZeros) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto hook = ofRank(2);
    Weights weights(kShapes, at::kDouble);
    DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), with(hook));
    std::vector<at::Tensor> zeros;
    for (const auto& shape : kShapes) zeros.push_back(at::zeros(shape, at::kDouble));
    const std::vector<at::Tensor> averages = averageOf(*weights, zeros);
    for (const at::Tensor& average : averages) EXPECT_EQ(average.count_nonzero().item<int64_t>(), 0);
    const at::Tensor q = hook->state().at(nameOf("q", 0));
    EXPECT_TRUE(close(q.t().mm(q), at::eye(2, at::kDouble), 1e-12));
    // A matrix of rank one takes no more than a few steps.
    std::vector<at::Tensor> gradients = zeros;
    gradients[0] = random({12, 1}, 1).mm(random({1, 20}, 2));
    averageOf(*weights, gradients);
    averageOf(*weights, zeros);
    EXPECT_TRUE(close(errorOf(hook->state(), 0), at::zeros({12, 20}, at::kDouble), 1e-9));
  });
}

// A scale of the losses that changes changes nothing but the scale of the averages.
TEST(PowerSgdHook, KeepsErrorsWithoutTheLossScale) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto hook = ofRank(1), unscaled = ofRank(1);
    Weights weights(kShapes), other(kShapes);
    DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), with(hook));
    DistributedDataParallel<Weights> plain(other, ProcessGroup::make(worker, job.names()), with(unscaled));
    for (int step = 0; step < 6; ++step) {
      const double scale = std::ldexp(1, 3 * (step % 4));
      auto gradients = gradientsOf(worker.self().rank, step, at::kFloat);
      const auto expected = averageOf(*other, gradients);
      for (at::Tensor& gradient : gradients) gradient = gradient * scale;
      hook->setLossScale(scale);
      const auto averages = averageOf(*weights, gradients);
      for (size_t i = 0; i < kShapes.size(); ++i) EXPECT_TRUE(close(averages[i] / scale, expected[i], 1e-5)) << i;
    }
    EXPECT_TRUE(close(errorOf(hook->state(), 0), errorOf(unscaled->state(), 0), 1e-5));
    for (const double wrong : {0.0, -1.0, std::nan(""), HUGE_VAL})
      EXPECT_THROW(hook->setLossScale(wrong), ArgumentError);
  });
}

TEST(PowerSgdHook, GoesOnFromItsState) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const auto hook = ofRank(2, 1, 2), resumed = ofRank(2, 1, 2);
    Weights weights(kShapes), other(kShapes);
    DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), with(hook));
    for (int step = 0; step < 5; ++step) averageOf(*weights, gradientsOf(rank, step, at::kFloat));
    resumed->load(hook->state());
    EXPECT_EQ(resumed->state().size(), hook->state().size());
    DdpOptions options = with(resumed);
    options.bucketOrder = ddp.bucketOrder();
    DistributedDataParallel<Weights> again(other, ProcessGroup::make(worker, job.names()), options);
    EXPECT_THROW(resumed->load(hook->state()), StateError);
    for (int step = 5; step < 8; ++step) {
      const auto gradients = gradientsOf(rank, step, at::kFloat);
      const auto averages = averageOf(*weights, gradients), alike = averageOf(*other, gradients);
      for (size_t i = 0; i < kShapes.size(); ++i) EXPECT_TRUE(haveEqualBits(averages[i], alike[i]));
    }
  });
}

// With options by which it averages everything as it is, what the state holds back goes with the first pass.
TEST(PowerSgdHook, SendsWhatAStateHoldsBackWhereItCompressesNothing) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const auto hook = ofRank(1), later = ofRank(1, 1, 100);
    Weights weights(kShapes, at::kDouble), other(kShapes, at::kDouble);
    const ProcessGroup group = ProcessGroup::make(worker, job.names());
    DistributedDataParallel<Weights> ddp(weights, group, with(hook));
    averageOf(*weights, gradientsOf(rank, 0));
    OptimizerState state = hook->state();
    state["power_sgd.error.2"] = at::full({17}, 3.0, at::kDouble);  // a vector is never compressed
    later->load(state);
    DistributedDataParallel<Weights> plain(other, group, with(later));
    const std::vector<at::Tensor> averages = averageOf(*other, gradientsOf(rank, 1));
    for (const size_t i : {size_t{0}, size_t{2}}) {
      at::Tensor expected = gradientsOf(rank, 1)[i] + state.at(nameOf("error", i));
      allReduce(group, expected, ReduceOp::kAverage).wait();
      EXPECT_TRUE(close(averages[i], expected, 1e-12)) << i;
      EXPECT_FALSE(later->state().contains(nameOf("error", i)));
    }
  });
}

// The hook outlives a group whose rank was lost, with what it holds back.
TEST(PowerSgdHook, GoesOnWithAnotherReplica) {
  TensorJob job(ranks(1));
  const auto hook = ofRank(1);
  const auto pass = [&](int step) {
    Weights weights(kShapes, at::kDouble);
    DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(job[0], job.names()), with(hook));
    return averageOf(*weights, gradientsOf(0, step));
  };
  const at::Tensor sent = pass(0)[0] + pass(1)[0];
  EXPECT_TRUE(close(sent + errorOf(hook->state(), 0), gradientsOf(0, 0)[0] + gradientsOf(0, 1)[0], 1e-12));
  EXPECT_EQ(hook->state().at("power_sgd.passes").item<int64_t>(), 2);
}

// What is wrong with a state on one rank is an error on all.
TEST(PowerSgdHook, RefusesStatesThatDoNotFit) {
  TensorJob job(ranks(2));
  const auto messageWith = [&](const std::function<void(OptimizerState&)>& change) {
    std::string message;
    job.onAll([&](Worker& worker) {
      const auto source = ofRank(2), hook = ofRank(2);
      Weights weights(kShapes, at::kDouble), other(kShapes, at::kDouble);
      OptimizerState state;
      {
        DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), with(source));
        averageOf(*weights, gradientsOf(worker.self().rank, 0));
        state = source->state();
      }
      if (worker.self().rank == 1) change(state);
      hook->load(state);
      const std::string own = messageOf<ArgumentError>(
          [&] { DistributedDataParallel<Weights> ddp(other, ProcessGroup::make(worker, job.names()), with(hook)); });
      if (worker.self().rank == 0) message = own;
    });
    return message;
  };
  EXPECT_TRUE(contains(messageWith([](OptimizerState& state) { state["power_sgd.error.9"] = at::zeros({17}); }),
                       "rank 1 has DdpOptions::hook that cannot be used: the state has 'power_sgd.error.9', which is "
                       "unknown"));
  EXPECT_TRUE(contains(messageWith([](OptimizerState& state) { state["power_sgd.error.0"] = at::zeros({17}); }),
                       "'power_sgd.error.0' of the state is of shape [17]"));
  EXPECT_TRUE(contains(messageWith([](OptimizerState& state) { state.erase("power_sgd.q.4"); }),
                       "the state has no 'power_sgd.q.4'"));
  EXPECT_TRUE(contains(messageWith([](OptimizerState& state) { state["power_sgd.q.4"][0] = kInfinity; }),
                       "'power_sgd.q.4' of the state is not finite"));
  EXPECT_TRUE(contains(messageWith([](OptimizerState& state) { state["power_sgd.passes"] += 1; }), "in pass 2 with"));
  EXPECT_TRUE(contains(messageWith([](OptimizerState& state) { state["power_sgd.q.4"] *= -1; }), "of its Q"));
}

TEST(PowerSgdHook, RefusesOptionsOutOfRangeAndThatDiffer) {
  for (const PowerSgdOptions& wrong :
       {PowerSgdOptions{.rank = 0}, PowerSgdOptions{.startAfter = -1}, PowerSgdOptions{.minCompressionRate = -1},
        PowerSgdOptions{.minCompressionRate = std::nan("")}})
    EXPECT_THROW(PowerSgdHook hook(wrong), ArgumentError);
  EXPECT_TRUE(
      contains(ofRank(3)->description(), "PowerSgdHook of rank 3, after 0 passes, for matrices that become more"));
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Weights weights(kShapes);
    PowerSgdOptions options;
    if (worker.self().rank == 1) options.seed = 1;
    const std::string message = messageOf<ArgumentError>([&] {
      DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()),
                                           with(std::make_shared<PowerSgdHook>(options)));
    });
    EXPECT_TRUE(contains(message, "rank 0 has DdpOptions::hook PowerSgdHook of rank 1, after 1000 passes"));
    EXPECT_TRUE(contains(message, "with the seed 0"));
    EXPECT_TRUE(contains(message, "with the seed 1"));
  });
}

// Two matrices and a vector are three operations, in which each rank of two sends as many bytes as it has.
TEST(PowerSgdHook, SendsTheThinMatrices) {
  constexpr int64_t kRows = 1024, kColumns = 512, kRank = 32, kVector = 4096;
  const Shapes shapes = {{kRows, kColumns}, {kVector}, {kRows, kColumns}};
  const uint64_t plain = bytesOfAPass(shapes, nullptr);
  const uint64_t compressed = bytesOfAPass(shapes, [] { return ofRank(kRank, 2); });
  const int64_t dense = 2 * kRows * kColumns, thin = 2 * (kRows + kColumns) * kRank;
  EXPECT_EQ(plain - compressed, static_cast<uint64_t>(4 * (dense - thin)));
}

// Error feedback makes up for what one step leaves out: the loss of a matrix that is learned comes down as without it.
TEST(PowerSgdHook, TrainsToTheSameLoss) {
  TensorJob job(ranks(2));
  std::vector<std::vector<double>> losses(2);
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    for (const bool isCompressed : {false, true}) {
      Net net(0);
      DdpOptions options = with(isCompressed ? ofRank(1) : nullptr);
      DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), options);
      torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.02));
      double loss = 0;
      for (int step = 0; step < 300; ++step) {
        optimizer.zero_grad();
        const at::Tensor one = ddp.forward(inputOf(rank, 0), false).square().mean();
        one.backward();
        optimizer.step();
        loss = one.item<double>();
      }
      losses[static_cast<size_t>(rank)].push_back(loss);
      ddp.verifyReplicas();
    }
  });
  for (const auto& both : losses) EXPECT_LT(both[1], 1.5 * both[0] + 1e-3);
}

}  // namespace
}  // namespace treadle::test::power_sgd_hook_test

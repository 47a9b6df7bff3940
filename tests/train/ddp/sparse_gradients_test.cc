// Sparse gradients: each rank's rows become a sparse average, equal to what one process with dense gradients has.

#include <ATen/core/grad_mode.h>
#include <torch/optim/sgd.h>

#include <map>
#include <optional>

#include "tests/train/ddp/tables.h"

namespace treadle::test::sparse_gradients_test {
namespace {

using namespace sparse_test;

std::vector<at::Tensor> trainedAlone(int size, int steps) {
  Tables net(/*isSparse=*/false);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
  for (int step = 0; step < steps; ++step) {
    meanOfAll(*net, size, step);
    optimizer.step();
  }
  return valuesOf(*net);
}

class SparseGradients : public ::testing::TestWithParam<int> {};

TEST_P(SparseGradients, TrainAsOneProcessDoesByDenseOnes) {
  constexpr int kSteps = 50;
  const int size = GetParam();
  TensorJob job(ranks(size));
  std::vector<std::vector<at::Tensor>> ofRanks(static_cast<size_t>(size));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Tables net(/*isSparse=*/true), alone(/*isSparse=*/false);
    DistributedDataParallel<Tables> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1));
    torch::optim::SGD optimizerAlone(alone->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < kSteps; ++step) {
      net->zero_grad();
      net->loss(rank, step).backward();
      meanOfAll(*alone, size, step);
      expectAverages(*net, *alone);
      optimizer.step();
      optimizerAlone.step();
    }
    ddp.verifyReplicas();
    EXPECT_EQ(ddp.stats().unusedParameters.back(), "never.weight");
    ofRanks[static_cast<size_t>(rank)] = valuesOf(*net);
  });
  expectTrainedAs(trainedAlone(size, kSteps), ofRanks);
}

TEST_P(SparseGradients, AreAveragedInContexts) {
  const int size = GetParam();
  TensorJob job(ranks(size));
  job.onAll([&](Worker& worker) {
    Tables net(/*isSparse=*/true), alone(/*isSparse=*/false);
    DistributedDataParallel<Tables> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    for (int step = 0; step < 4; ++step) {
      AutogradContext context(worker);
      context.backward({net->loss(worker.self().rank, step)});
      meanOfAll(*alone, size, step);
      expectAverages(*net, *alone, &context);
      EXPECT_FALSE(net->words->weight.grad().defined());
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, SparseGradients, ::testing::Values(1, 2, 3));

// A dense gradient on some rank makes a dense average. From the pass after it on gradients are expected to be dense,
// until they are sparse again.
TEST(LayoutsOfPasses, AreThoseOfTheRanks) {
  constexpr size_t kBytes = kRows * kWidth * sizeof(double), kOwn = 6 * kWidth * sizeof(double);
  TensorJob job(ranks(2));
  std::vector<std::vector<at::Tensor>> ofRanks(2);
  const std::vector<std::string> passes = {"ss", "ss", "sd", "ds", "dd", "ss", "ss", "sn", "ns", "nn", "nd", "sb",
                                           "bn", "ns", "tt", "tn", "ss", "es", "ee", "ne", "ed", "ee", "en"};
  // Bytes of the bucket, if there is one, and at most so many of what travels in none.
  const std::map<int, std::vector<size_t>> sent = {{0, {kBytes, kOwn}}, {1, {kOwn}},         {2, {kBytes}},
                                                   {4, {kBytes}},       {5, {kBytes, kOwn}}, {6, {kOwn}}};
  job.onAll([&](Worker& worker) {
    Replica own(worker, 2);
    for (int step = 0; step < static_cast<int>(passes.size()); ++step) {
      SCOPED_TRACE(passes[static_cast<size_t>(step)] + " in " + std::to_string(step));
      const std::string& kinds = passes[static_cast<size_t>(step)];
      own.net->zero_grad();
      own.backward(kinds, step);
      const at::Tensor sum = sumOfAll(kinds, step);
      expectGradient(own.grad(), sum.defined() ? sum / 2 : sum, isSparseOnAll(kinds));
      if (const auto found = sent.find(step); found != sent.end()) {
        EXPECT_EQ(own.sent().size(), found->second.size());
        EXPECT_LE(own.sent().back(), found->second.back());
      }
      ofRanks[static_cast<size_t>(own.rank)].push_back(denseOf(own.grad()));
    }
  });
  expectEqualBits(ofRanks[0], ofRanks[1]);
}

std::vector<std::string> allOf(const std::string& letters, size_t length) {
  std::vector<std::string> words = {""};
  for (size_t i = 0; i < length; ++i) {
    std::vector<std::string> longer;
    for (const std::string& word : words)
      for (const char letter : letters) longer.push_back(word + letter);
    words = longer;
  }
  return words;
}

class Accumulated : public ::testing::TestWithParam<std::tuple<Divisor, bool>> {};

// A pass under noSync and an averaged one, of all kinds on both ranks. The gradient may turn from sparse to dense with
// the first one that the averaged pass has.
TEST_P(Accumulated, GradientsHaveTheRightDivisorAndLayout) {
  const auto [divisor, isInContext] = GetParam();
  const std::vector<std::string> patterns = allOf("sdn", 4);
  TensorJob job(ranks(2));
  std::vector<std::vector<at::Tensor>> ofRanks(2);
  job.onAll([&](Worker& worker) {
    DdpOptions options;
    options.divisor = divisor;
    Replica own(worker, 2, options);
    for (const std::string& pattern : patterns) {
      SCOPED_TRACE(pattern);
      const std::vector<std::string> passes = {pattern.substr(0, 2), pattern.substr(2)};
      std::optional<AutogradContext> context;
      if (isInContext) context.emplace(worker);
      own.net->zero_grad();
      at::Tensor sum;
      Counts batches(2);
      for (int pass = 0; pass < 2; ++pass) {
        const std::string& kinds = passes[static_cast<size_t>(pass)];
        std::optional<ddp::NoSync> unaveraged;
        if (pass == 0) unaveraged.emplace(own.ddp.noSync());
        if (divisor == Divisor::kWeights) own.ddp.setWeight(weightOf(own.rank));
        own.backward(kinds, pass, context ? &*context : nullptr);
        for (size_t rank = 0; rank < 2; ++rank) batches[rank] += kinds[rank] != 'n' ? 1 : 0;
        if (const at::Tensor more = sumOfAll(kinds, pass); more.defined()) sum = sum.defined() ? sum + more : more;
      }
      EXPECT_EQ(own.ddp.pendingPasses(), 0U);
      const at::Tensor gradient = context ? context->gradient(own.net->weight) : own.grad();
      expectGradient(gradient, sum.defined() ? sum / divisorOf(divisor, batches) : sum, isSparseOnAll(pattern));
      ofRanks[static_cast<size_t>(own.rank)].push_back(gradient.defined() ? denseOf(gradient).clone() : gradient);
    }
  });
  expectEqualBits(ofRanks[0], ofRanks[1]);
}

INSTANTIATE_TEST_SUITE_P(Divisors, Accumulated,
                         ::testing::Combine(::testing::Values(Divisor::kWorldSize, Divisor::kActiveRanks, Divisor::kSum,
                                                              Divisor::kWeights),
                                            ::testing::Bool()),
                         [](const auto& info) {
                           return std::string(ddp::nameOf(std::get<0>(info.param))) +
                                  (std::get<1>(info.param) ? "InAContext" : "");
                         });

// What was cleared does not count, also where a dense gradient comes after a sparse one. What was averaged and not
// cleared is still refused.
TEST(TurnedGradients, CountOnlyWhatIsThere) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    DdpOptions options;
    options.divisor = Divisor::kWeights;
    Replica own(worker, 2, options);
    for (int round = 0; round < 2; ++round) {
      {
        const auto unaveraged = own.ddp.noSync();
        own.ddp.setWeight(100);
        own.backward("ss", 0);
        EXPECT_EQ(own.ddp.pendingPasses(), 1U);
        own.net->weight.mutable_grad() = own.grad().clone();  // not the gradient of that pass any more
        own.ddp.setWeight(100);
        own.backward("dd", 0);
        EXPECT_EQ(own.ddp.pendingPasses(), 1U);
        own.net->zero_grad();
      }
      {
        const auto unaveraged = own.ddp.noSync();
        own.ddp.setWeight(100);
        own.backward("ss", 0);
        own.net->zero_grad();
      }
      own.ddp.setWeight(weightOf(own.rank));
      own.backward("dd", 1);
      expectGradient(own.grad(), sumOfAll("dd", 1) / 3, /*isSparse=*/false);
      own.net->zero_grad();
      own.ddp.setWeight(weightOf(own.rank));
      own.backward("ss", 2);
      expectGradient(own.grad(), sumOfAll("ss", 2) / 3, /*isSparse=*/true);
      own.ddp.setWeight(1);
      EXPECT_THROW(own.backward("dd", 3), Error);  // it is added to an average
      own.net->zero_grad();
    }
  });
}

// Averages that are not cleared add up, as in one process.
TEST(TurnedGradients, AddUpWithAverages) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica own(worker, 2);
    at::Tensor sum = at::zeros({kRows, kWidth}, at::kDouble);
    bool isSparse = true;
    int step = 0;
    for (const std::string kinds : {"ss", "sn", "ns", "sd", "ss", "dd", "sn"}) {
      ++step;
      own.backward(kinds, step);
      sum += sumOfAll(kinds, step) / 2;
      isSparse = isSparse && isSparseOnAll(kinds);
      expectGradient(own.grad(), sum, isSparse);
    }
  });
}

// The table is used by a node that makes a pass of its own, when the table's sparse gradient has come and its bucket
// has gone.
at::Tensor lossThatTurns(TableImpl& net, int rank, bool isDense) {
  const at::Tensor input = random({1, kRows}, 77).requires_grad_();
  const at::Tensor late = Inner::apply(input, Inner::addressOf(net.weight)).sum();  // runs last
  const at::Tensor rows = net.loss('s', rank, 0);
  return isDense ? rows + late : rows;
}

TEST(TurnedGradients, WithinAPassAreAveragedAnew) {
  TensorJob job(ranks(2));
  for (const bool isOnBoth : {true, false})
    for (const int passes : {1, 2})
      job.onAll([&](Worker& worker) {
        Replica own(worker, 2);
        Table alone(/*isSparse=*/false);
        for (int rank = 0; rank < 2; ++rank)
          for (int pass = 0; pass < passes; ++pass)
            lossThatTurns(*alone, rank, isOnBoth || rank == 1).div(2).backward();
        for (int step = 0; step < 2; ++step) {
          own.net->zero_grad();
          std::optional<ddp::NoSync> unaveraged;
          if (passes == 2) {
            unaveraged.emplace(own.ddp.noSync());
            lossThatTurns(*own.net, own.rank, isOnBoth || own.rank == 1).backward();
            unaveraged.reset();
          }
          lossThatTurns(*own.net, own.rank, isOnBoth || own.rank == 1).backward();
          expectGradient(own.grad(), alone->weight.grad(), /*isSparse=*/false);
        }
      });
}

TEST(SparseGradientsOf, SixteenBitsAreWeightedWithoutOverflow) {
  TensorJob job(ranks(2));
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat})
    job.onAll([&](Worker& worker) {
      Table net(/*isSparse=*/true, dtype);
      DdpOptions options;
      options.divisor = Divisor::kWeights;
      DistributedDataParallel<Table> ddp(net, ProcessGroup::make(worker, job.names()), options);
      ddp.setWeight(worker.self().rank == 0 ? 2 : 1);
      const at::Tensor rows = at::embedding(net->weight, at::tensor({5, 3, 5}, at::kLong), -1, false, /*sparse=*/true);
      (rows.to(at::kDouble) * at::tensor({10000, 40000, 6000}, at::kDouble).view({3, 1})).sum().backward();
      ASSERT_TRUE(isSparseAndCoalesced(net->weight.grad()));
      EXPECT_EQ(net->weight.grad().scalar_type(), dtype);
      const at::Tensor expected = at::tensor({80000.0 / 3, 32000.0 / 3}, at::kDouble).view({2, 1}).expand({2, kWidth});
      ASSERT_EQ(net->weight.grad()._nnz(), 2);
      EXPECT_TRUE(close(net->weight.grad()._values().to(at::kDouble), expected, 0.01));
    });
}

struct ScalarImpl : torch::nn::Module {
  ScalarImpl() { value = register_parameter("value", at::ones({}, at::kDouble)); }
  at::Tensor value;
};
TORCH_MODULE(Scalar);

// Of no sparse dimensions, with one row.
TEST(SparseGradientsOf, ScalarsAreAveraged) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Scalar net;
    DistributedDataParallel<Scalar> ddp(net, ProcessGroup::make(worker, job.names()));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      const at::Tensor once = at::gather(net->value, 0, at::zeros({}, at::kLong), /*sparse_grad=*/true);
      if (step == 1 && rank == 1) {
        ddp.skipPass();
      } else {
        (once * (2 + 4 * rank)).backward();
      }
      expectGradient(net->value.grad(), at::full({}, step == 1 ? 1 : 4, at::kDouble), /*isSparse=*/true);
      EXPECT_EQ(net->value.grad().sparse_dim(), 0);
    }
  });
}

TEST(SparseGradientsOf, PassesUnderNoSyncAreAveragedBySynchronize) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica own(worker, 2);
    for (int step = 0; step < 3; ++step) {
      own.net->zero_grad();
      {
        const auto unaveraged = own.ddp.noSync();
        own.backward(step == 1 ? "sn" : "ss", step);
      }
      own.ddp.synchronize();
      expectGradient(own.grad(), sumOfAll(step == 1 ? "sn" : "ss", step) / 2, /*isSparse=*/true);
    }
  });
}

// A program that holds the gradient sees the average in it.
TEST(SparseGradientsOf, AProgramStayTheSameTensor) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica own(worker, 2);
    {
      const auto unaveraged = own.ddp.noSync();
      own.backward("ss", 0);
    }
    const at::Tensor held = own.grad();
    own.ddp.synchronize();
    EXPECT_TRUE(held.is_same(own.grad()));
    expectGradient(held, sumOfAll("ss", 0) / 2, /*isSparse=*/true);
  });
}

// `behind` is the last one in their bucket.
struct StripsImpl : torch::nn::Module {
  StripsImpl() {
    behind = register_parameter("behind", random({40}, 6));
    for (const char* name : {"a", "b", "c", "d"}) all.push_back(register_parameter(name, random({4}, 5)));
  }
  at::Tensor behind;
  std::vector<at::Tensor> all;
};
TORCH_MODULE(Strips);

// Averages lie in their bucket, one behind the other. A sparse gradient without dense dimensions is added to each.
// Without its guard libtorch adds it to another parameter's.
TEST(SparseGradientsOf, OneElementAreAddedToAveragesWhereTheyLie) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Strips net;
    DistributedDataParallel<Strips> ddp(net, ProcessGroup::make(worker, job.names()));
    at::Tensor loss = (net->behind * at::ones({40}, at::kDouble)).sum();
    for (const at::Tensor& one : net->all)
      loss = loss + (one * at::full({4}, 1 + worker.self().rank, at::kDouble)).sum();
    loss.backward();
    int64_t partsOfABucket = 0;
    for (const at::Tensor& one : net->all) partsOfABucket += one.grad().storage_offset() != 0 ? 1 : 0;
    EXPECT_EQ(partsOfABucket, 3);
    {
      const auto unaveraged = ddp.noSync();
      at::Tensor more = at::zeros({}, at::kDouble);
      for (size_t i = 0; i < net->all.size(); ++i)
        more = more + at::gather(net->all[i], 0, at::full({1}, static_cast<int64_t>(i), at::kLong),
                                 /*sparse_grad=*/true)
                          .sum();
      more.backward();
    }
    ddp.synchronize();
    for (size_t i = 0; i < net->all.size(); ++i) {
      at::Tensor expected = at::full({4}, 1.5, at::kDouble);
      expected[static_cast<int64_t>(i)] += 1;
      EXPECT_TRUE(close(net->all[i].grad(), expected)) << i;
    }
    EXPECT_TRUE(close(net->behind.grad(), at::ones({40}, at::kDouble)));
  });
}

// The same sparse gradient on one rank, in a place of a bucket, beside a dense one on the other.
TEST(SparseGradientsOf, OneElementAreAveragedWithDenseOnes) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Strips net;
    DistributedDataParallel<Strips> ddp(net, ProcessGroup::make(worker, job.names()));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      at::Tensor loss = net->behind.sum();
      for (const at::Tensor& one : net->all)
        loss = loss + (worker.self().rank == 0 ? one : at::gather(one, 0, at::full({1}, 2, at::kLong), true)).sum();
      loss.backward();
      for (const at::Tensor& one : net->all)
        EXPECT_TRUE(close(one.grad(), at::tensor({0.5, 0.5, 1.0, 0.5}, at::kDouble)));
      EXPECT_TRUE(close(net->behind.grad(), at::ones({40}, at::kDouble)));
    }
  });
}

class DifferentDimensions : public ::testing::TestWithParam<int> {};

// Sparse gradients that cannot be added are averaged as dense ones: in the first pass and after dense averages in their
// bucket, and elsewhere beside it, where a sparse one was expected.
TEST_P(DifferentDimensions, MakeADenseAverage) {
  const int size = GetParam();
  constexpr size_t kBytes = kRows * kWidth * sizeof(double);
  const std::vector<std::string> passes = {"sts", "tsn", "sss", "sss", "stn", "tts", "ttt", "ntt", "tst", "sss"};
  TensorJob job(ranks(size));
  std::vector<std::vector<at::Tensor>> ofRanks(static_cast<size_t>(size));
  job.onAll([&](Worker& worker) {
    Replica own(worker, size);
    bool isInBucket = true;
    for (int step = 0; step < static_cast<int>(passes.size()); ++step) {
      const std::string kinds = passes[static_cast<size_t>(step)].substr(0, static_cast<size_t>(size));
      SCOPED_TRACE(kinds + " in " + std::to_string(step));
      const bool isSparse = kinds.find('s') == std::string::npos || kinds.find('t') == std::string::npos;
      own.net->zero_grad();
      own.backward(kinds, step);
      expectGradient(own.grad(), sumOfAll(kinds, step) / size, isSparse);
      EXPECT_EQ(own.sent().size(), isInBucket && isSparse ? 2U : 1U);
      if (!isSparse) {
        EXPECT_EQ(own.sent().front(), kBytes);
      }
      isInBucket = !isSparse;
      ofRanks[static_cast<size_t>(own.rank)].push_back(denseOf(own.grad()));
    }
    EXPECT_EQ(own.ddp.state().condition, DdpCondition::kUsable);
  });
  for (const auto& one : ofRanks) expectEqualBits(one, ofRanks[0]);
}

INSTANTIATE_TEST_SUITE_P(Sizes, DifferentDimensions, ::testing::Values(2, 3));

// Those of one rank: a context has the earlier pass's gradient, and `.grad` that of the averaged one.
TEST(SparseGradientsOf, OtherDimensionsInAContextMakeADenseAverage) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Replica own(worker, 2);
    for (int step = 0; step < 3; ++step) {
      AutogradContext context(worker);
      {
        const auto unaveraged = own.ddp.noSync();
        own.backward("ss", step, &context);
      }
      own.backward("ts", step + 10, &context);
      expectGradient(context.gradient(own.net->weight), (sumOfAll("ss", step) + sumOfAll("ts", step + 10)) / 2,
                     /*isSparse=*/false);
    }
  });
}

}  // namespace
}  // namespace treadle::test::sparse_gradients_test

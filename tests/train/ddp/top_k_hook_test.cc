// Top-k against its rule in one process: nothing is lost, ties go to the lowest index, and a ratio of 1 is averaging.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "tests/support/expect_error.h"
#include "tests/support/seeds.h"
#include "tests/train/ddp/hooks.h"
#include "treadle/train/ddp/largest_elements.h"

namespace treadle::test::top_k_hook_test {
namespace {

using namespace ddp_test;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

DdpOptions with(std::shared_ptr<CommHook> hook) {
  return {.buckets = {.firstBytes = 256, .bytes = 1024}, .hook = std::move(hook)};
}

std::shared_ptr<TopKHook> ofRatio(double ratio) { return std::make_shared<TopKHook>(TopKOptions{.ratio = ratio}); }

// The third one is too small for three ranks, which send one element each.
const Shapes kShapes = {{12, 20}, {8, 3, 2, 2}, {5}, {60}};

std::string errorName(size_t parameter) { return "top_k.error." + std::to_string(parameter); }

at::Tensor errorOf(const OptimizerState& state, size_t parameter) {
  const auto found = state.find(errorName(parameter));
  return found != state.end() ? found->second.to(at::kDouble) : at::zeros(kShapes[parameter], at::kDouble);
}

// Whole numbers, of which many are equal.
std::vector<at::Tensor> gradientsOf(int rank, int step, at::ScalarType dtype = at::kDouble) {
  std::vector<at::Tensor> gradients;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    const uint64_t seed = 1000 * static_cast<uint64_t>(step) + 10 * i + static_cast<uint64_t>(rank);
    gradients.push_back((4 * random(kShapes[i], seed)).round().to(dtype));
  }
  return gradients;
}

// The indexes of the largest, by sorting all.
std::vector<int64_t> largestBySorting(const at::Tensor& values, int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(values.numel()));
  std::iota(all.begin(), all.end(), int64_t{0});
  const auto magnitudeAt = [&](int64_t i) {
    const double value = std::abs(values[i].item<double>());
    return std::isnan(value) ? kInfinity : value;
  };
  std::stable_sort(all.begin(), all.end(), [&](int64_t a, int64_t b) { return magnitudeAt(a) > magnitudeAt(b); });
  all.resize(static_cast<size_t>(count));
  std::sort(all.begin(), all.end());
  return all;
}

TEST(LargestElements, AreThoseOfASortedListWithTiesByIndex) {
  forSeeds(50, [](Random& random) {
    const auto elements = static_cast<int64_t>(1 + pick(random, 40));
    at::Tensor values = at::zeros({elements}, pick(random, 2) == 0 ? at::kFloat : at::kDouble);
    for (int64_t i = 0; i < elements; ++i) {
      const uint64_t kind = pick(random, 20);
      values[i] = kind == 0 ? std::nan("") : kind == 1 ? -kInfinity : static_cast<double>(pick(random, 7)) - 3;
    }
    const auto count = static_cast<int64_t>(pick(random, static_cast<uint64_t>(elements) + 1));
    const at::Tensor found = ddp::indexesOfLargest(values, count);
    const std::vector<int64_t> expected = largestBySorting(values, count);
    ASSERT_EQ(found.numel(), count);
    for (int64_t i = 0; i < count; ++i) EXPECT_EQ(found[i].item<int64_t>(), expected[static_cast<size_t>(i)]);
  });
}

class TopK : public ::testing::TestWithParam<double> {};

// By the rule, in float64 and without sparse tensors. The sums of whole numbers are exact; their mean is rounded.
TEST_P(TopK, FollowsItsRuleOnEachRank) {
  constexpr int kSize = 3, kSteps = 8;
  const double ratio = GetParam();
  TensorJob job(ranks(kSize));
  std::vector<std::vector<std::vector<at::Tensor>>> averages(kSize);
  std::vector<std::vector<OptimizerState>> states(kSize);
  job.onAll([&](Worker& worker) {
    const auto own = static_cast<size_t>(worker.self().rank);
    const auto hook = ofRatio(ratio);
    Weights weights(kShapes, at::kDouble);
    DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), with(hook));
    for (int step = 0; step < kSteps; ++step) {
      averages[own].push_back(averageOf(*weights, gradientsOf(worker.self().rank, step)));
      states[own].push_back(hook->state());
    }
  });
  for (size_t i = 0; i < kShapes.size(); ++i) {
    const int64_t elements = at::zeros(kShapes[i]).numel();
    const int64_t count = std::max<int64_t>(1, static_cast<int64_t>(ratio * static_cast<double>(elements)));
    const bool isDense = kSize * count > elements / 2;
    std::vector<at::Tensor> errors(kSize, at::zeros({elements}, at::kDouble));
    for (size_t step = 0; step < kSteps; ++step) {
      at::Tensor sum = at::zeros({elements}, at::kDouble);
      for (int each = 0; each < kSize; ++each) {
        at::Tensor& error = errors[static_cast<size_t>(each)];
        error = error + gradientsOf(each, static_cast<int>(step))[i].view({-1});
        for (const int64_t place : largestBySorting(error, isDense ? elements : count)) {
          sum[place] += error[place];
          error[place] = 0;
        }
      }
      for (size_t each = 0; each < kSize; ++each) {
        EXPECT_TRUE(close(averages[each][step][i].view({-1}), sum / kSize, 1e-14)) << i << " in " << step;
        EXPECT_TRUE(haveEqualBits(averages[each][step][i], averages[0][step][i]));
        EXPECT_TRUE(at::equal(errorOf(states[each][step], i).view({-1}), errors[each])) << i << " in " << step;
        EXPECT_EQ(states[each][step].contains(errorName(i)), !isDense);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Ratios, TopK, ::testing::Values(0.001, 0.05, 0.16, 0.5));

TEST(TopKHook, OfRatioOneIsAveraging) {
  TensorJob job(ranks(3));
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kHalf})
    job.onAll([&](Worker& worker) {
      const auto hook = ofRatio(1);
      Weights weights(kShapes, dtype), plain(kShapes, dtype);
      DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), with(hook));
      DistributedDataParallel<Weights> other(plain, ProcessGroup::make(worker, job.names()), with(nullptr));
      for (int step = 0; step < 3; ++step) {
        const auto gradients = gradientsOf(worker.self().rank, step, dtype);
        const auto averages = averageOf(*weights, gradients), expected = averageOf(*plain, gradients);
        for (size_t i = 0; i < kShapes.size(); ++i) EXPECT_TRUE(haveEqualBits(averages[i], expected[i]));
      }
      EXPECT_TRUE(hook->state().empty());
    });
}

// As for PowerSGD, where gradients are of 16 bits too. Small whole numbers are exact in them.
TEST(TopKHook, LosesNothing) {
  constexpr int kSize = 2, kSteps = 9;
  for (const at::ScalarType dtype : {at::kFloat, at::kHalf}) {
    TensorJob job(ranks(kSize));
    std::vector<OptimizerState> states(kSize);
    std::vector<at::Tensor> sent, had;
    for (const auto& shape : kShapes) {
      sent.push_back(at::zeros(shape, at::kDouble));
      had.push_back(at::zeros(shape, at::kDouble));
    }
    const auto gradientsIn = [&](int rank, int step) {
      std::vector<at::Tensor> gradients = gradientsOf(rank, step, dtype);
      if (step == 3 || (step == 4 && rank == 1)) gradients[0].reset();
      return gradients;
    };
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      const auto hook = ofRatio(0.02);
      Weights weights(kShapes, dtype);
      DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), with(hook));
      for (int step = 0; step < kSteps; ++step) {
        const std::vector<at::Tensor> averages = averageOf(*weights, gradientsIn(rank, step));
        for (size_t i = 0; i < kShapes.size(); ++i)
          if (rank == 0 && averages[i].defined()) sent[i] += averages[i].to(at::kDouble);
      }
      states[static_cast<size_t>(rank)] = hook->state();
    });
    for (int each = 0; each < kSize; ++each)
      for (size_t i = 0; i < kShapes.size(); ++i) {
        sent[i] += errorOf(states[static_cast<size_t>(each)], i) / kSize;
        for (int step = 0; step < kSteps; ++step)
          if (const at::Tensor gradient = gradientsIn(each, step)[i]; gradient.defined())
            had[i] += gradient.to(at::kDouble) / kSize;
      }
    for (size_t i = 0; i < kShapes.size(); ++i) EXPECT_TRUE(at::equal(sent[i], had[i])) << i;
  }
}

TEST(TopKHook, SpreadsInfinitiesAndKeepsNothingOfThem) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const auto hook = ofRatio(0.05);
    Weights weights(kShapes);
    DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), with(hook));
    averageOf(*weights, gradientsOf(rank, 0, at::kFloat));
    for (const double number : {kInfinity, -kInfinity, std::nan("")}) {
      const OptimizerState before = hook->state();
      auto gradients = gradientsOf(rank, 1, at::kFloat);
      if (rank == 1) gradients[0].view({-1})[7] = number;
      const at::Tensor average = averageOf(*weights, gradients)[0].view({-1});
      if (std::isnan(number)) {
        EXPECT_TRUE(average[7].isnan().item<bool>());
      } else {
        EXPECT_EQ(average[7].item<double>(), number);
      }
      EXPECT_EQ(average.isfinite().logical_not().sum().item<int64_t>(), 1);
      const OptimizerState after = hook->state();
      ASSERT_EQ(after.size(), before.size());
      for (const auto& [name, tensor] : before) EXPECT_TRUE(haveEqualBits(tensor, after.at(name))) << name;
    }
  });
}

// Of another ratio too, in which a parameter with an error is averaged as it is.
TEST(TopKHook, GoesOnFromItsState) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const auto hook = ofRatio(0.05), resumed = ofRatio(0.05), dense = ofRatio(1);
    Weights weights(kShapes), other(kShapes);
    DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()), with(hook));
    averageOf(*weights, gradientsOf(rank, 0, at::kFloat));
    const OptimizerState saved = hook->state();
    resumed->load(saved);
    dense->load(saved);
    const auto gradients = gradientsOf(rank, 1, at::kFloat), averages = averageOf(*weights, gradients);
    {
      DistributedDataParallel<Weights> again(other, ProcessGroup::make(worker, job.names()), with(resumed));
      const auto alike = averageOf(*other, gradients);
      for (size_t i = 0; i < kShapes.size(); ++i) EXPECT_TRUE(haveEqualBits(averages[i], alike[i]));
    }
    DistributedDataParallel<Weights> all(other, ProcessGroup::make(worker, job.names()), with(dense));
    const at::Tensor own = gradients[0] + saved.at(errorName(0));
    at::Tensor sum = own.clone();
    allReduce(ddp.group(), sum).wait();
    EXPECT_TRUE(close(averageOf(*other, gradients)[0], sum / 2, 1e-6));
    EXPECT_TRUE(dense->state().empty());
  });
}

TEST(TopKHook, SendsTheLargestElementsAndTheirPlaces) {
  constexpr int64_t kElements = 1 << 22;
  const uint64_t plain = bytesOfAPass(Shapes{{kElements}}, nullptr);
  const uint64_t compressed = bytesOfAPass(Shapes{{kElements}}, [] { return ofRatio(1e-3); });
  constexpr auto kCount = static_cast<uint64_t>(1e-3 * kElements);
  EXPECT_LT(compressed, plain / 100);
  // The ranks have the same gradients, so what both sides add up are k elements. A rank sends those that the other one
  // adds up, and its own sums.
  const auto expected = static_cast<double>(kCount * 12);
  EXPECT_NEAR(static_cast<double>(compressed), expected, 0.05 * expected);
}

TEST(TopKHook, RefusesWhatItCannotDo) {
  for (const double wrong : {0.0, -0.1, 1.1, std::nan("")}) EXPECT_THROW(ofRatio(wrong), ArgumentError);
  EXPECT_EQ(ofRatio(0.25)->description(), "TopKHook of the ratio 0.25");
}

}  // namespace
}  // namespace treadle::test::top_k_hook_test

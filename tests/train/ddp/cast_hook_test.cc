// Averages that travel as 16-bit floats keep to the bound that is promised, against one process in float64.

#include <cmath>
#include <limits>

#include "tests/support/expect_error.h"
#include "tests/support/seeds.h"
#include "tests/train/ddp/hooks.h"

namespace treadle::test::cast_hook_test {
namespace {

using namespace ddp_test;

struct Format {
  at::ScalarType dtype;
  double u, tiny;
};
constexpr Format kFormats[] = {{at::kHalf, 0x1p-11, 0x1p-25}, {at::kBFloat16, 0x1p-8, 0x1p-134}};

class CastHooks : public ::testing::TestWithParam<int> {};

// Gradients of all magnitudes, that underflow too.
at::Tensor gradientOf(Random& random, int64_t elements, int lowest, int highest) {
  at::Tensor gradient = at::empty({elements}, at::kDouble);
  for (double& value : std::span(gradient.mutable_data_ptr<double>(), static_cast<size_t>(elements))) {
    const auto exponent = lowest + static_cast<int>(pick(random, static_cast<uint64_t>(highest - lowest)));
    value = std::ldexp(1 + static_cast<double>(pick(random, 1 << 30)) * 0x1p-30, exponent);
    if (pick(random, 2) == 0) value = -value;
  }
  return gradient.to(at::kFloat);
}

TEST_P(CastHooks, KeepTheBoundOfTheirError) {
  const int size = GetParam();
  TensorJob job(ranks(size));
  Random random(seedOfRun());
  for (const Format& format : kFormats) {
    const int lowest = format.dtype == at::kHalf ? -30 : -140, highest = format.dtype == at::kHalf ? 15 : 120;
    std::vector<at::Tensor> gradients, averages(static_cast<size_t>(size));
    for (int rank = 0; rank < size; ++rank) gradients.push_back(gradientOf(random, 5000, lowest, highest));
    job.onAll([&](Worker& worker) {
      const auto rank = static_cast<size_t>(worker.self().rank);
      Weights weights(Shapes{{5000}});
      DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()),
                                           {.hook = std::make_shared<CastHook>(format.dtype)});
      averages[rank] = averageOf(*weights, {gradients[rank]})[0];
    });
    at::Tensor mean = at::zeros({5000}, at::kDouble), meanOfMagnitudes = mean.clone();
    for (const at::Tensor& gradient : gradients) {
      mean += gradient.to(at::kDouble) / size;
      meanOfMagnitudes += gradient.to(at::kDouble).abs() / size;
    }
    const at::Tensor error = (averages[0].to(at::kDouble) - mean).abs();
    const at::Tensor bound = format.u * (2 + format.u) * meanOfMagnitudes + 2 * format.tiny;
    EXPECT_TRUE((error <= bound * (1 + 1e-9)).all().item<bool>()) << c10::toString(format.dtype);
    EXPECT_GT((error / bound).max().item<double>(), 0.1) << "it is the average in 16 bits that is measured";
    for (const at::Tensor& average : averages) EXPECT_TRUE(haveEqualBits(average, averages[0]));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, CastHooks, ::testing::Values(1, 2, 3, 5));

TEST(CastHook, SpreadsInfinitiesAndMakesThemOfLargeNumbers) {
  TensorJob job(ranks(2));
  const float infinity = std::numeric_limits<float>::infinity();
  job.onAll([&](Worker& worker) {
    const bool isFirst = worker.self().rank == 0;
    Weights weights(Shapes{{4}});
    DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()),
                                         {.hook = std::make_shared<CastHook>(at::kHalf)});
    const at::Tensor gradient =
        at::tensor({isFirst ? infinity : 1.0F, isFirst ? -140000.0F : 1.0F, 60000.0F, std::nanf("")});
    const at::Tensor average = averageOf(*weights, {gradient})[0];
    EXPECT_EQ(average[0].item<float>(), infinity);
    EXPECT_EQ(average[1].item<float>(), -infinity);
    EXPECT_NEAR(average[2].item<float>(), 60000, 16) << "the sum of both is no float16";
    EXPECT_TRUE(std::isnan(average[3].item<float>()));
    // The next pass knows nothing of it.
    EXPECT_TRUE(at::equal(averageOf(*weights, {at::ones({4})})[0], at::ones({4})));
  });
}

// float64 is cast too; bfloat16 would lose its range in float16.
TEST(CastHook, LeavesShortGradientsAsTheyAre) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    for (const at::ScalarType dtype : {at::kBFloat16, at::kDouble}) {
      Weights weights(Shapes{{2}}, dtype);
      DistributedDataParallel<Weights> ddp(weights, ProcessGroup::make(worker, job.names()),
                                           {.hook = std::make_shared<CastHook>(at::kHalf)});
      const at::Tensor average = averageOf(*weights, {at::tensor({1e30, 1e30}, at::kDouble).to(dtype)})[0];
      EXPECT_EQ(average.scalar_type(), dtype);
      EXPECT_EQ(average.isinf().all().item<bool>(), dtype == at::kDouble);
    }
  });
}

TEST(CastHook, SendsHalfOfTheBytes) {
  constexpr int64_t kElements = 1 << 20;
  for (const Format& format : kFormats) {
    const uint64_t saved = bytesOfAPass(Shapes{{kElements}}, nullptr) -
                           bytesOfAPass(Shapes{{kElements}}, [&] { return std::make_shared<CastHook>(format.dtype); });
    EXPECT_EQ(saved, uint64_t{kElements} * 2);  // of two ranks, each sends as many bytes as there are
  }
}

TEST(CastHook, NamesItsTypeAndRefusesOthers) {
  EXPECT_EQ(CastHook(at::kHalf).description(), "CastHook to Half");
  EXPECT_EQ(CastHook(at::kBFloat16).description(), "CastHook to BFloat16");
  EXPECT_TRUE(contains(messageOf<ArgumentError>([] { CastHook hook(at::kFloat); }), "was given Float"));
}

}  // namespace
}  // namespace treadle::test::cast_hook_test

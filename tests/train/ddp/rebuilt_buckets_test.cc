// Buckets that were planned anew, where a rank fails meanwhile, and with parameters of several dtypes.

#include <stdexcept>
#include <utility>

#include "tests/train/ddp/apart.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::rebuilt_buckets_test {
namespace {

using namespace ddp_test;

// Three dtypes, which are used in another order than that of their registration.
struct MixedDtypesImpl : torch::nn::Module {
  MixedDtypesImpl() {
    for (int layer = 0; layer < 3; ++layer) {
      const auto seed = static_cast<uint64_t>(10 * layer);
      doubles.push_back(register_parameter("double" + std::to_string(layer), random({5, 5}, seed)));
      singles.push_back(register_parameter("single" + std::to_string(layer), random({5, 5}, seed + 1).to(at::kFloat)));
      halves.push_back(register_parameter("half" + std::to_string(layer), random({5}, seed + 2).to(at::kHalf)));
    }
    seen = register_buffer("seen", at::zeros({5}, at::kDouble));
  }
  at::Tensor loss(const at::Tensor& input) {
    {
      at::NoGradGuard noGrad;
      seen += input.mean(0);
    }
    at::Tensor hidden = input;
    for (const size_t layer : {1U, 2U, 0U}) {
      hidden = at::tanh(hidden.mm(doubles[layer])) * halves[layer].to(at::kDouble);
      hidden = at::tanh(hidden.to(at::kFloat).mm(singles[layer])).to(at::kDouble);
    }
    return hidden.square().mean();
  }
  std::vector<at::Tensor> doubles, singles, halves;
  at::Tensor seen;
};
TORCH_MODULE(MixedDtypes);

DdpOptions averagingBuffers() { return {.buckets = {.firstBytes = 150, .bytes = 300}, .buffers = Buffers::kAverage}; }

void expectGradientsOfBoth(const MixedDtypes& net, int step) {
  MixedDtypes alone;
  alone->loss(at::cat({inputOf(0, step), inputOf(1, step)})).backward();
  for (const auto& entry : alone->named_parameters()) {
    const at::Tensor& expected = entry.value().grad();
    const at::ScalarType dtype = expected.scalar_type();
    const double tolerance = dtype == at::kHalf ? 4e-3 : dtype == at::kFloat ? 1e-5 : 1e-6;
    const at::Tensor actual = net->named_parameters()[entry.key()].grad();
    EXPECT_EQ(actual.scalar_type(), dtype);
    EXPECT_TRUE(close(actual.to(at::kDouble), expected.to(at::kDouble), tolerance)) << entry.key() << " in " << step;
  }
}

TEST(RebuiltBuckets, HaveOneDtypeEach) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    MixedDtypes net;
    DistributedDataParallel<MixedDtypes> ddp(net, ProcessGroup::make(worker, job.names()), averagingBuffers());
    const std::vector<std::string> before = ddp.bucketOrder();
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      net->loss(inputOf(worker.self().rank, step)).backward();
      expectGradientsOfBoth(net, step);
      EXPECT_EQ(ddp.bucketOrder()[0], "single0");
      EXPECT_NE(ddp.bucketOrder(), before);
    }
    ddp.verifyReplicas();
  });
}

// Another callback of the pass throws on rank 1, after its exact channel has gone. That rank learns the order of rank 0
// all the same, and begins the exchange of buffers that rank 0 waits for: the next pass has an account of both.
TEST(RebuiltBuckets, AreThoseOfARankWhosePassFailsBetweenTheStepsToo) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    MixedDtypes net;
    DistributedDataParallel<MixedDtypes> ddp(net, ProcessGroup::make(worker, job.names()), averagingBuffers());
    bool fails = rank == 1;
    net->doubles[1].register_hook([&](const at::Tensor&) {
      if (std::exchange(fails, false)) throwAfter(1);
    });
    auto pass = [&](int step) {
      net->zero_grad();
      net->loss(inputOf(rank, step)).backward();
    };
    if (rank == 0) {
      pass(0);
    } else {
      EXPECT_THROW(pass(0), std::runtime_error);
    }
    EXPECT_EQ(ddp.bucketOrder()[0], "single0");
    expectApartAndRebind(ddp, worker, "rank1", [&] { pass(1); });
    for (int step = 2; step < 4; ++step) {
      pass(step);
      expectGradientsOfBoth(net, step);
    }
    ddp.verifyReplicas();
  });
}

struct SmallFloatsImpl : torch::nn::Module {
  explicit SmallFloatsImpl(at::ScalarType dtype) { weight = register_parameter("weight", at::ones({3}, dtype)); }
  at::Tensor weight;
};
TORCH_MODULE(SmallFloats);

// The sum of the gradients is no float16, and neither is the sum of three of them.
TEST(SmallGradients, OfSixteenBitsAreWeightedWithoutOverflow) {
  constexpr int kSize = 3;
  TensorJob job(ranks(kSize));
  for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16})
    job.onAll([&](Worker& worker) {
      SmallFloats net(dtype);
      DistributedDataParallel<SmallFloats> ddp(net, ProcessGroup::make(worker, job.names()),
                                               {.divisor = Divisor::kWeights});
      ddp.setWeight(worker.self().rank == 0 ? 2 : 1);
      (net->weight.to(at::kDouble) * 40000).sum().backward();
      const at::Tensor gradient = net->weight.grad();
      EXPECT_EQ(gradient.scalar_type(), dtype);
      EXPECT_TRUE(close(gradient.to(at::kDouble), at::full({3}, 30000, at::kDouble), 0.01));
    });
}

}  // namespace
}  // namespace treadle::test::rebuilt_buckets_test

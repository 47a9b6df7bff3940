// The bits of buffers: those that are the same on all ranks stay, whatever they are, and means do not overflow.

#include <cmath>
#include <limits>

#include "tests/support/seeds.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::buffer_bits_test {
namespace {

using namespace ddp_test;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// A parameter, and a buffer of each type that is averaged.
struct BufferedImpl : torch::nn::Module {
  explicit BufferedImpl(const at::Tensor& values) {
    weight = register_parameter("weight", at::ones({2}, at::kDouble));
    for (const at::ScalarType dtype : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble})
      all.push_back(register_buffer(std::string("of") + c10::toString(dtype), values.to(dtype, false, /*copy=*/true)));
  }
  at::Tensor weight;
  std::vector<at::Tensor> all;
};
TORCH_MODULE(Buffered);

DdpOptions averaged(Divisor divisor) {
  return {.start = StartCheck::kTrust, .buffers = treadle::Buffers::kAverage, .divisor = divisor};
}

// Masks and scales. Rounded means would drift, 49 * (1 / 49) is not 1, and the mean of two infinities may be a NaN.
TEST(BufferBits, OfConstantsStayUnderRandomWeights) {
  constexpr int kSize = 3, kPasses = 50;
  TensorJob job(ranks(kSize));
  Random random(seedOfRun());
  std::vector<std::vector<double>> weights(kPasses);
  for (auto& ofRanks : weights)
    for (int rank = 0; rank < kSize; ++rank) ofRanks.push_back(static_cast<double>(1 + pick(random, 60)));
  const at::Tensor values = at::tensor({0.1, 1.0 / 3, -0.0, -kInfinity, std::nan(""), 1e-8, 30000.0}, at::kDouble);
  job.onAll([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    Buffered net(values), before(values);
    DistributedDataParallel<Buffered> ddp(net, ProcessGroup::make(worker, job.names()), averaged(Divisor::kWeights));
    for (const auto& ofRanks : weights) {
      net->zero_grad();
      ddp.setWeight(ofRanks[rank]);
      net->weight.sum().backward();
    }
    for (size_t i = 0; i < net->all.size(); ++i) {
      EXPECT_TRUE(haveEqualBits(net->all[i], before->all[i])) << i;
      EXPECT_EQ(net->all[i]._version(), before->all[i]._version()) << "graphs that have saved it stay valid";
    }
  });
}

// The last rank has another value, so there is a mean to compute; all ranks get the same bits.
TEST(BufferBits, OfAMeanAreThoseOfAllRanks) {
  constexpr int kSize = 3;
  TensorJob job(ranks(kSize));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Buffered net(at::full({5}, rank == kSize - 1 ? 0.7 : 0.1, at::kDouble));
    DistributedDataParallel<Buffered> ddp(net, ProcessGroup::make(worker, job.names()), averaged(Divisor::kWorldSize));
    net->weight.sum().backward();
    ddp.verifyReplicas();
    EXPECT_TRUE(close(net->all.back(), at::full({5}, 0.3, at::kDouble), 1e-12));
  });
}

// All of the weight is rank 1's: three times its value is no float16.
TEST(BufferBits, OfLargeHalvesDoNotOverflow) {
  constexpr int kSize = 3;
  TensorJob job(ranks(kSize));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Buffered net(at::full({4}, 30000 + 16 * rank, at::kDouble));
    DistributedDataParallel<Buffered> ddp(net, ProcessGroup::make(worker, job.names()), averaged(Divisor::kWeights));
    ddp.setWeight(rank == 1 ? 7 : 0);
    net->weight.sum().backward();
    EXPECT_TRUE(at::equal(net->all.front(), at::full({4}, 30016, at::kHalf)));
  });
}

// Equal numbers are not equal bits: 0 and -0 compare as equal, and a NaN with nothing.
TEST(BufferBits, OfRankZeroComeToAllRanksAlsoForZerosAndNaNs) {
  TensorJob job(ranks(2));
  DdpOptions options = averaged(Divisor::kWorldSize);
  options.buffers = treadle::Buffers::kFromRank0;
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const at::Tensor ofRankZero = at::tensor({-0.0, std::nan("")}, at::kDouble);
    Buffered net(rank == 0 ? ofRankZero : ofRankZero.abs()), before(ofRankZero);
    DistributedDataParallel<Buffered> ddp(net, ProcessGroup::make(worker, job.names()), options);
    for (int pass = 0; pass < 2; ++pass) {
      const auto version = net->all[0]._version();
      net->weight.sum().backward();
      if (rank == 0 || pass == 1) {
        EXPECT_EQ(net->all[0]._version(), version);
      }
      for (size_t i = 0; i < net->all.size(); ++i) EXPECT_TRUE(haveEqualBits(net->all[i], before->all[i]));
    }
    ddp.verifyReplicas();
  });
}

}  // namespace
}  // namespace treadle::test::buffer_bits_test

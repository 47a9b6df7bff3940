// How large buckets are for the network of a job.

#include "treadle/train/ddp/bucket_limits.h"

#include "tests/support/tensor_job.h"
#include "tests/train/ddp/net.h"
#include "treadle/core/cluster/costs.h"
#include "treadle/core/group/expected_time.h"
#include "treadle/core/group/group_service.h"

namespace treadle::test::bucket_limits_test {
namespace {

using namespace ddp_test;

constexpr size_t kKiB = size_t{1} << 10, kMiB = kKiB << 10;
constexpr double kMbit = 1e6 / 8;

// Two workers whose groups know each of them to be on a host of its own; in bytes per second, and seconds.
struct JobBetweenHosts : TensorJob {
  explicit JobBetweenHosts(double bandwidth, double latency = 18e-6) : TensorJob(ranks(2)) {
    const cluster::Costs costs{{8e-6, 6e9}, {latency, bandwidth}, 10e-6, 2};
    for (auto& worker : workers()) worker->groups().setCosts(costs, [](int of) { return "host" + std::to_string(of); });
  }
};

size_t bytesFor(double bandwidth, const ddp::BucketLimits& limits = {}, double latency = 18e-6) {
  JobBetweenHosts job(bandwidth, latency);
  std::vector<size_t> bytes;
  for (size_t rank = 0; rank < 2; ++rank)
    bytes.push_back(ddp::limitsFor(ProcessGroup::make(job[rank], job.names()), limits).bytes.value());
  EXPECT_EQ(bytes[0], bytes[1]);
  return bytes[0];
}

// Two members send each other as many bytes as they sum: 20 ms of a gigabit carry 2.5 MB.
TEST(BucketLimits, AreWhatTheNetworkSumsIn20Milliseconds) {
  EXPECT_EQ(bytesFor(20'000 * kMbit), 25 * kMiB);
  EXPECT_EQ(bytesFor(1'000 * kMbit), 25 * kMiB / 16);
  EXPECT_EQ(bytesFor(200 * kMbit), 25 * kMiB / 64);
  EXPECT_EQ(bytesFor(100 * kMbit), 256 * kKiB) << "195 KiB would take less";
  EXPECT_EQ(bytesFor(1 * kMbit), 256 * kKiB);
  EXPECT_EQ(bytesFor(200 * kMbit, {.bytes = 7 * kMiB}), 7 * kMiB) << "the program's own";
}

// Three times the latency alone is more than 20 ms: small buckets would only add it up.
TEST(BucketLimits, AreNotSmallWhereLatencyTakesTheTime) {
  EXPECT_EQ(bytesFor(1'000 * kMbit, {}, 0.014), 25 * kMiB / 4);
  EXPECT_EQ(bytesFor(10'000 * kMbit, {}, 0.1), 25 * kMiB);
  EXPECT_EQ(bytesFor(200 * kMbit, {}, 0.002), 25 * kMiB / 64) << "a few milliseconds matter little";
}

TEST(BucketLimits, AreTheLargestWhereNothingIsSent) {
  TensorJob job(ranks(1));
  EXPECT_EQ(ddp::limitsFor(ProcessGroup::make(job[0], job.names()), {}).bytes, 25 * kMiB);
}

// What a group cannot do, its first operation refuses.
TEST(BucketLimits, AreTheLargestWhereTheAlgorithmDoesNotServe) {
  JobBetweenHosts job(200 * kMbit);
  const ProcessGroup group = ProcessGroup::make(job[0], job.names(), {.algorithm = Algorithm::kTree});
  EXPECT_EQ(group::expectedAllReduceTime(group, 25 * kMiB), 0);
  EXPECT_EQ(ddp::limitsFor(group, {}).bytes, 25 * kMiB);
}

// 16 parameters of 192 KiB each.
struct WideImpl : torch::nn::Module {
  WideImpl() {
    for (int i = 0; i < 16; ++i)
      layers.push_back(register_parameter("layer" + std::to_string(i), at::ones({192 * 256})));
  }
  at::Tensor forward() {
    at::Tensor sum = layers[0].sum();
    for (size_t i = 1; i < 16; ++i) sum = sum + layers[i].sum();
    return sum;
  }
  std::vector<at::Tensor> layers;
};
TORCH_MODULE(Wide);

std::vector<size_t> bucketsFor(double bandwidth) {
  JobBetweenHosts job(bandwidth);
  std::vector<std::vector<size_t>> bytes(2);
  job.onAll([&](Worker& worker) {
    Wide net;
    DistributedDataParallel<Wide> ddp(net, ProcessGroup::make(worker, job.names()));
    ddp.forward().backward();
    const DdpStats stats = ddp.stats();
    for (const DdpBucketTimes& bucket : stats.recent.front().buckets)
      bytes[static_cast<size_t>(worker.self().rank)].push_back(bucket.bytes);
  });
  EXPECT_EQ(bytes[0], bytes[1]);
  return bytes[0];
}

TEST(BucketLimits, HoldInATrainedModuleOfAllRanks) {
  constexpr size_t kLayer = 192 * kKiB;
  EXPECT_EQ(bucketsFor(200 * kMbit), std::vector<size_t>(8, 2 * kLayer));
  EXPECT_EQ(bucketsFor(1'000 * kMbit), (std::vector{5 * kLayer, 8 * kLayer, 3 * kLayer}));
  EXPECT_EQ(bucketsFor(20'000 * kMbit), (std::vector{5 * kLayer, 11 * kLayer})) << "the first one has 1 MiB";
}

}  // namespace
}  // namespace treadle::test::bucket_limits_test

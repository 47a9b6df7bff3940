// The code of docs/guide/distributed_training.md about machines that only sum.

#include <treadle/core.h>

#include "tests/support/worker_job.h"

namespace {

TEST(SummationGuide, MachinesThatOnlySum) {
  treadle::test::WorkerJob job({"worker0", "worker1", "server2"}, {},
                               [](treadle::JoinOptions& options) { options.launch->servers = 1; });
  job.onAll([&](treadle::Worker& worker) {
    if (worker.self().name == "server2") return;
    // [summation]
    auto service = treadle::SummationService::make(worker, {},
                                                   {{"weight", treadle::group::DataType::kFloat32, 1'000'000},
                                                    {"bias", treadle::group::DataType::kFloat32, 1'000}});
    std::vector<float> weight(1'000'000, 1), bias(1'000, 2);
    treadle::Future<void> ofBias = service.sum("bias", std::span(bias));  // in any order
    treadle::Future<void> ofWeight = service.sum("weight", std::span(weight));
    ofWeight.wait();  // each number is the number of workers now
    ofBias.wait();
    service.leave().wait();
    // [/summation]
    EXPECT_EQ(weight, std::vector<float>(1'000'000, 2));
    EXPECT_EQ(bias, std::vector<float>(1'000, 4));
  });
}

}  // namespace

// The code of docs/guide/distributed_training.md about machines that only sum.

#include <treadle/core.h>

#include "tests/support/worker_job.h"

namespace {

TEST(SummationGuide, MachinesThatOnlySum) {
  treadle::test::WorkerJob job({"trainer0", "trainer1", "adder"});
  job.onAll([&](treadle::Worker& worker) {
    // [summation]
    treadle::SummationOptions options{.workers = {"trainer0", "trainer1"}, .servers = {"adder"}};
    if (worker.self().name == "adder") {
      auto service = treadle::SummationService::make(worker, options);
      service.ended().wait();  // when all trainers have left
      return;
    }
    auto service = treadle::SummationService::make(worker, options,
                                                   {{"weight", treadle::group::DataType::kFloat32, 1'000'000},
                                                    {"bias", treadle::group::DataType::kFloat32, 1'000}});
    std::vector<float> weight(1'000'000, 1), bias(1'000, 2);
    treadle::Future<void> ofBias = service.sum("bias", std::span(bias));  // in any order
    treadle::Future<void> ofWeight = service.sum("weight", std::span(weight));
    ofWeight.wait();  // each number is 2 now
    ofBias.wait();
    service.leave().wait();
    // [/summation]
    EXPECT_EQ(weight, std::vector<float>(1'000'000, 2));
    EXPECT_EQ(bias, std::vector<float>(1'000, 4));
  });
}

}  // namespace

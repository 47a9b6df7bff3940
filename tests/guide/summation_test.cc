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

TEST(SummationGuide, Teams) {
  treadle::test::WorkerJob job({"a0", "a1", "b0", "b1", "server4"}, {},
                               [](treadle::JoinOptions& options) { options.launch->servers = 1; });
  job.onAll([&](treadle::Worker& worker) {
    if (worker.self().name == "server4") return;
    std::vector<float> weight(1'000'000, 1);
    // [teams]
    auto service = treadle::SummationService::make(worker, {.teams = {{"a0", "a1"}, {"b0", "b1"}}},
                                                   {{"weight", treadle::group::DataType::kFloat32, 1'000'000}});
    // [/teams]
    service.sum("weight", std::span(weight)).wait();
    service.leave().wait();
    EXPECT_EQ(weight, std::vector<float>(1'000'000, 4));
  });
}

TEST(SummationGuide, CompressedTensors) {
  treadle::test::WorkerJob job({"worker0", "worker1", "server2"}, {},
                               [](treadle::JoinOptions& options) { options.launch->servers = 1; });
  job.onAll([&](treadle::Worker& worker) {
    if (worker.self().name == "server2") return;
    // [compression]
    auto service = treadle::SummationService::make(
        worker, {.compression = treadle::Compression::oneBit()},
        {{.name = "weight", .elements = 1'000'000},
         {.name = "loss", .elements = 1, .compression = treadle::Compression()}});  // as it is
    std::vector<float> weight(1'000'000, 0.5F), loss(1, 0.125F);
    treadle::Future<void> ofLoss = service.sum("loss", std::span(loss));
    service.sum("weight", std::span(weight)).wait();
    ofLoss.wait();
    service.leave().wait();
    // [/compression]
    EXPECT_EQ(weight, std::vector<float>(1'000'000, 1));
    EXPECT_EQ(loss, std::vector<float>(1, 0.25F));
  });
}

TEST(SummationGuide, LatestParameters) {
  treadle::test::WorkerJob job({"worker0", "worker1", "server2"}, {},
                               [](treadle::JoinOptions& options) { options.launch->servers = 1; });
  job.onAll([&](treadle::Worker& worker) {
    if (worker.self().name == "server2") return;
    // [asynchronous]
    auto service = treadle::SummationService::make(worker, {.asynchronous = true, .staleness = 4},
                                                   {{"weight", treadle::group::DataType::kFloat32, 3}});
    std::vector<float> weight(3, worker.self().rank == 0 ? 0.5F : 0.0F);  // all begin with the first worker's values
    service.sum("weight", std::span(weight)).wait();
    for (int step = 0; step < 10; ++step) {
      std::vector<float> change(3, 0.25F);  // what an optimizer would do to `weight`
      service.sum("weight", std::span(change)).wait();
      weight = change;  // the latest values, with the changes of all workers that have come
    }
    service.leave().wait();
    // [/asynchronous]
    EXPECT_GE(weight, std::vector<float>(3, 3));
    EXPECT_LE(weight, std::vector<float>(3, 5.5F));
  });
}

}  // namespace

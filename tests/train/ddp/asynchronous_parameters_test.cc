// AsynchronousParameters: workers that train at their own pace, beside Asynchronous Parallel in one process.

#include <torch/optim/sgd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <thread>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/job_with_servers.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::asynchronous_parameters_test {
namespace {

using namespace ddp_test;

struct JobWithServers : test::JobWithServers<TensorJob> {
  JobWithServers(int workers, int servers)
      : test::JobWithServers<TensorJob>("w", workers, servers, AutogradOptions()) {}
};

// A worker in one process or in a job, with a network, and momentum of its own.
struct Trainer {
  explicit Trainer(uint64_t seed) : net(seed), sgd(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)) {}

  void step(int rank, int number) {
    sgd.zero_grad();
    net->forward(inputOf(rank, number), /*skip=*/false).square().mean().backward();
    sgd.step();
  }

  Net net;
  torch::optim::SGD sgd;
};

bool haveSameBits(const std::vector<at::Tensor>& one, const std::vector<at::Tensor>& other) {
  return std::equal(one.begin(), one.end(), other.begin(), other.end(), [](const at::Tensor& a, const at::Tensor& b) {
    return std::memcmp(a.const_data_ptr(), b.const_data_ptr(), a.nbytes()) == 0;
  });
}

// The definition: one copy of the parameters, to which workers add what they have changed in their own one, and which
// replaces that.
class OneProcess {
 public:
  OneProcess(int workers, uint64_t seed) {
    for (int worker = 0; worker < workers; ++worker) trainers_.emplace_back(seed);
    parameters_ = copiesOf(trainers_.front().net->parameters());
    for (const Trainer& one : trainers_) seen_.push_back(copiesOf(one.net->parameters()));
  }

  void step(int worker, int number) {
    Trainer& trainer = trainers_[static_cast<size_t>(worker)];
    std::vector<at::Tensor>& seen = seen_[static_cast<size_t>(worker)];
    trainer.step(worker, number);
    const at::NoGradGuard noGrad;
    for (size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor own = trainer.net->parameters()[i];
      parameters_[i].add_(own - seen[i]);
      own.copy_(parameters_[i]);
      seen[i].copy_(parameters_[i]);
    }
  }
  const std::vector<at::Tensor>& parameters() const { return parameters_; }

 private:
  std::vector<Trainer> trainers_;
  std::vector<at::Tensor> parameters_;
  std::vector<std::vector<at::Tensor>> seen_;  // by worker
};

// Workers take turns, in the order of `turns`: to the bit, also where a server is lost on the way.
TEST(AsynchronousParameters, AreThoseOfAsynchronousParallelInTheSameOrder) {
  const std::vector<int> turns = {0, 1, 1, 2, 0, 1, 2, 1, 1, 0, 1, 2};
  for (const auto& [servers, isOneLost] :
       {std::pair(0, false), std::pair(1, false), std::pair(2, false), std::pair(1, true), std::pair(2, true)}) {
    SCOPED_TRACE(std::to_string(servers) + " servers" + (isOneLost ? ", one is lost" : ""));
    OneProcess alone(3, /*seed=*/0);
    JobWithServers job(3, servers);
    job.onWorkers([&, mayKill = isOneLost](Worker& worker) {
      const int rank = worker.self().rank;
      Trainer trainer(static_cast<uint64_t>(rank) * 100);
      trainer.net->offset.copy_(Net(0)->offset);  // a buffer, which each worker has for itself
      AsynchronousParameters shared(worker, *trainer.net);
      EXPECT_TRUE(haveSameBits(trainer.net->parameters(), alone.parameters())) << "all begin with the first worker's";
      for (size_t turn = 0; turn < turns.size(); ++turn) {
        if (mayKill && rank == 0 && turn == turns.size() / 2) job.killServer(0);
        worker.barrier();
        if (rank == 0) alone.step(turns[turn], static_cast<int>(turn));
        if (rank == turns[turn]) {
          trainer.step(rank, static_cast<int>(turn));
          shared.exchange();
        }
        worker.barrier();
        EXPECT_TRUE(rank != turns[turn] || haveSameBits(trainer.net->parameters(), alone.parameters()));
      }
    });
  }
}

// At their own pace. Each step changes each number by the same, so the steps can be counted in the end.
TEST(AsynchronousParameters, HaveTheStepsOfAllWorkers) {
  JobWithServers job(3, 1);
  constexpr double kChange = 0.125;
  const auto stepsOf = [](int rank) { return 2 + 3 * rank; };
  const int all = stepsOf(0) + stepsOf(1) + stepsOf(2);
  job.onWorkers([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    torch::optim::SGD sgd(net->parameters(), kChange);
    AsynchronousParameters shared(worker, *net);
    for (int step = 0; step < stepsOf(rank); ++step) {
      for (at::Tensor& parameter : net->parameters()) parameter.mutable_grad() = at::ones_like(parameter);
      sgd.step();
      shared.exchange();
    }
    worker.barrier();
    shared.exchange();
    for (const auto& first : Net(0)->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[first.key()], first.value() - kChange * all)) << first.key();
  });
}

// The first one has few batches, and the others go on without it.
TEST(AsynchronousParameters, TakeStepsOfWorkersWithDifferentNumbersOfBatches) {
  JobWithServers job(3, 1);
  job.onWorkers([&](Worker& worker) {
    const int rank = worker.self().rank;
    Trainer trainer(0);
    AsynchronousParameters shared(worker, *trainer.net, {.staleness = 2});
    for (int step = 0; step < 2 + 6 * rank; ++step) {
      trainer.step(rank, step);
      shared.exchange();
    }
  });
}

TEST(AsynchronousParameters, WaitForAWorkerThatIsTooFarBehind) {
  JobWithServers job(2, 1);
  std::atomic<int> done = 0;  // exchanges of the first worker
  job.onWorkers([&](Worker& worker) {
    Net net(0);
    AsynchronousParameters shared(worker, *net, {.staleness = 2});
    if (worker.self().rank == 0) {
      for (; done < 4; ++done) shared.exchange();
    } else {
      EXPECT_TRUE(eventually([&] { return done == 2; }));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // in which the third could end
      EXPECT_EQ(2, done);
      shared.exchange();
      EXPECT_TRUE(eventually([&] { return done == 3; }));
    }
  });
}

// It has data left that nobody will see.
TEST(AsynchronousParameters, FailOnAllMachinesWhereAnExceptionEndsTheTrainingOfOne) {
  JobWithServers job(2, 0);
  job.onWorkers([](Worker& worker) {
    Net net(0);
    if (worker.self().rank == 1) {
      EXPECT_THROW(
          {
            AsynchronousParameters shared(worker, *net, {.staleness = 0});
            throw std::runtime_error("no more batches can be read");
          },
          std::runtime_error);
      return;
    }
    const std::string why = messageOf<CancelledError>([&] {
      AsynchronousParameters shared(worker, *net, {.staleness = 0});  // the first values may not have come yet
      shared.exchange();
    });
    EXPECT_TRUE(contains(why, "w1")) << why;
    EXPECT_TRUE(contains(why, "an exception has ended its training")) << why;
  });
}

TEST(AsynchronousParameters, FailOnAllMachinesWhereAParameterWasReplaced) {
  JobWithServers job(2, 0);
  job.onWorkers([](Worker& worker) {
    Net net(0);
    AsynchronousParameters shared(worker, *net, {.staleness = 0});
    worker.barrier();
    if (worker.self().rank == 1) net->register_parameter("more", at::zeros({1}, at::kDouble));
    EXPECT_TRUE(
        contains(messageOf<StateError>([&] { shared.exchange(); }),
                 "parameter 'more' requires a gradient now, unlike when AsynchronousParameters was constructed"));
  });
}

// A worker that cannot know which of its changes the others have gives no more.
TEST(AsynchronousParameters, FailOnAllMachinesWhereAParameterHasBecomeAnother) {
  JobWithServers job(2, 0);
  job.onWorkers([](Worker& worker) {
    Trainer trainer(0);
    AsynchronousParameters shared(worker, *trainer.net, {.staleness = 0});
    worker.barrier();
    const at::Tensor whole = trainer.net->bias.detach().clone();
    if (worker.self().rank == 1) {
      trainer.net->bias.set_data(at::zeros({1}, at::kDouble));
      EXPECT_EQ("'bias' has become float64 [1], and was float64 [7]",
                messageOf<StateError>([&] { shared.exchange(); }));
      trainer.net->bias.set_data(whole);
    }
    EXPECT_TRUE(contains(messageOf<StateError>([&] { shared.exchange(); }), "'bias' has become float64 [1]"));
  });
}

TEST(AsynchronousParameters, LeaveFrozenOnesAlone) {
  JobWithServers job(2, 0);
  job.onWorkers([](Worker& worker) {
    const int rank = worker.self().rank;
    Trainer trainer(static_cast<uint64_t>(rank) * 100);
    trainer.net->first.requires_grad_(false);
    const at::Tensor frozen = trainer.net->first.clone();
    AsynchronousParameters shared(worker, *trainer.net);
    shared.exchange();
    EXPECT_TRUE(trainer.net->first.equal(frozen));
    EXPECT_TRUE(trainer.net->last.equal(Net(0)->last));
  });
}

TEST(AsynchronousParameters, KeepTheirValuesWhereAWorkerIsLost) {
  JobWithServers job(2, 1);
  Trainer first(0), second(0);
  std::vector<std::unique_ptr<AsynchronousParameters>> shared(2);
  job.onWorkers([&](Worker& worker) {
    const auto rank = static_cast<size_t>(worker.self().rank);
    shared[rank] = std::make_unique<AsynchronousParameters>(worker, *(rank == 0 ? first : second).net);
  });
  job.kill(1);
  shared[1].reset();
  const std::string why = messageOf<PeerLostError>([&] {
    const TimePoint end = deadlineAfter(std::chrono::seconds(60));
    for (int step = 0; Clock::now() < end; ++step) {
      first.step(0, step);
      const auto before = copiesOf(first.net->parameters());
      try {
        shared[0]->exchange();
      } catch (const Error&) {
        EXPECT_TRUE(haveSameBits(first.net->parameters(), before));
        throw;
      }
    }
  });
  EXPECT_TRUE(contains(why, "w1")) << why;
}

TEST(AsynchronousParameters, RefuseAModuleWithoutTrainedParameters) {
  JobWithServers job(1, 0);
  Net net(0);
  for (at::Tensor& one : net->parameters()) one.requires_grad_(false);
  EXPECT_EQ("no parameter of the module requires a gradient",
            messageOf<ArgumentError>([&] { AsynchronousParameters(job[0], *net); }));
}

}  // namespace
}  // namespace treadle::test::asynchronous_parameters_test

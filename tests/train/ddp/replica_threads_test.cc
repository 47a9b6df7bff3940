// The threads of the replicas of a process: they draw random numbers of their own, share libtorch's threads, and see
// none of the caller's guards.

#include "treadle/train/ddp/replica_set.h"

#include <ATen/Parallel.h>
#include <dlfcn.h>
#include <sys/wait.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <thread>

#include "tests/support/gate.h"
#include "tests/train/ddp/tied_net.h"
#include "treadle/amp.h"
#include "treadle/train/ddp/idle_threads.h"
#include "treadle/train/ddp/thread_generator.h"

namespace treadle::test::replica_threads_test {
namespace {

using namespace tied_net;

// Both orders in which the replicas come to their Dropout.
TEST(ReplicaSet, DropsDifferentlyInEachReplicaAndTheSameInEachRun) {
  torch::nn::Sequential net(torch::nn::Linear(1, 1), torch::nn::Dropout(0.5));
  ReplicaSet<torch::nn::Sequential> replicas(net, {.replicas = 2});
  auto run = [&](uint64_t seed, int first) {
    torch::manual_seed(seed);
    std::vector<at::Tensor> masks(4);
    for (int pass = 0; pass < 2; ++pass) {
      Gate hasDrawn;
      replicas.backward([&](torch::nn::SequentialImpl& replica, int index) {
        if (index != first) hasDrawn.wait();
        const at::Tensor output = replica.forward(at::ones({64, 1}));
        if (index == first) hasDrawn.open();
        masks[static_cast<size_t>(2 * pass + index)] = output.detach() != 0;
        return output.sum();
      });
    }
    return masks;
  };
  const std::vector<at::Tensor> masks = run(1, 0);
  expectSame(run(1, 1), masks);
  for (size_t i = 1; i < masks.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(at::equal(masks[i], masks[j])) << i << j;
  EXPECT_FALSE(at::equal(run(2, 0)[0], masks[0]));
}

TEST(ReplicaSet, GivesAllRandomOperatorsTheGeneratorOfTheThread) {
  const at::Tensor half = at::full({32}, 0.5);
  auto drawAll = [&] {
    return std::vector<at::Tensor>{at::rand({32}),
                                   at::randn({32}),
                                   at::randint(100, {32}),
                                   at::randperm(32),
                                   at::bernoulli(half),
                                   at::multinomial(half, 8),
                                   at::normal(0.0, half),
                                   at::rand_like(half),
                                   at::poisson(half),
                                   at::empty({32}).exponential_(),
                                   at::dropout(half, 0.5, true),
                                   std::get<0>(at::native_dropout(half, 0.5, true)),
                                   at::rrelu(-half, 0.1, 0.9, true)};
  };
  std::vector<at::Tensor> once, again;
  {
    const ddp::ThreadGenerator random(5);
    once = drawAll();
  }
  torch::manual_seed(1);
  const at::Tensor next = at::rand({4});
  torch::manual_seed(1);
  {
    const ddp::ThreadGenerator random(5);
    again = drawAll();
    const ddp::ThreadGenerator another(6);
    EXPECT_FALSE(at::equal(drawAll()[0], once[0]));
  }
  expectSame(again, once);
  EXPECT_TRUE(at::equal(at::rand({4}), next));  // the other generator has not moved
}

// A clone draws first values for its layers.
TEST(ReplicaSet, IsMadeWithoutNumbersOfTheProgram) {
  torch::nn::Linear net(4, 4);
  torch::manual_seed(1);
  const at::Tensor next = at::rand({4});
  torch::manual_seed(1);
  const ReplicaSet<torch::nn::Linear> replicas(net, {.replicas = 2});
  EXPECT_TRUE(at::equal(at::rand({4}), next));
}

TEST(ReplicaSet, ComputesWithoutGuardsOfTheCaller) {
  TiedNet net, alone;
  ReplicaSet<TiedNet> replicas(net, {.replicas = 2});
  const at::NoGradGuard noGrad;
  replicas.backward([&](TiedNetImpl& replica, int index) { return lossOfShard(replica, index, 0); });
  const at::AutoGradMode grad(true);
  for (int shard = 0; shard < 2; ++shard) lossOfShard(*alone, shard, 0).div(2).backward();
  expectClose(gradientsOf(net), gradientsOf(alone));
}

// Two rows for each of two replicas of a layer in float32.
at::Tensor rowsOf(int replica) { return random({2, 8}, static_cast<uint64_t>(replica)).to(at::kFloat); }

// Computed in float64.
std::vector<at::Tensor> exactGradientsOf(const torch::nn::Linear& net) {
  const at::Tensor weight = net->weight.detach().to(at::kDouble).requires_grad_();
  const at::Tensor bias = net->bias.detach().to(at::kDouble).requires_grad_();
  const at::Tensor rows = at::cat({rowsOf(0), rowsOf(1)}).to(at::kDouble);
  (rows.mm(weight.t()) + bias).square().mean().backward();
  return {weight.grad().to(at::kFloat), bias.grad().to(at::kFloat)};
}

double largestErrorOf(const torch::nn::Linear& net) {
  const std::vector<at::Tensor> gradients = gradientsOf(net), exact = exactGradientsOf(net);
  double largest = 0;
  for (size_t i = 0; i < exact.size(); ++i)
    largest = std::max(largest, ((gradients[i] - exact[i]).abs().max() / exact[i].abs().max()).item<double>());
  return largest;
}

constexpr double kErrorOfFloat32 = 1e-5, kErrorOfBfloat16 = 0.03;

TEST(ReplicaSet, ComputesWithoutAutocastOfTheCaller) {
  torch::nn::Linear net(8, 4);
  ReplicaSet<torch::nn::Linear> replicas(net, {.replicas = 2});
  const Autocast guard;
  EXPECT_EQ(net->forward(rowsOf(0)).scalar_type(), at::kBFloat16);
  replicas.backward([&](torch::nn::LinearImpl& replica, int index) {
    const at::Tensor output = replica.forward(rowsOf(index));
    EXPECT_EQ(output.scalar_type(), at::kFloat);
    return output.square().mean();
  });
  EXPECT_EQ(net->forward(rowsOf(0)).scalar_type(), at::kBFloat16);  // the guard goes on
  const Autocast off({.enabled = false});
  EXPECT_LT(largestErrorOf(net), kErrorOfFloat32);
}

// In the second pass, casts of the first one would be of other values.
TEST(ReplicaSet, ComputesWithAutocastOfTheFunction) {
  torch::nn::Linear net(8, 4);
  ReplicaSet<torch::nn::Linear> replicas(net, {.replicas = 2});
  for (int pass = 0; pass < 2; ++pass) {
    net->zero_grad();
    replicas.backward([&](torch::nn::LinearImpl& replica, int index) {
      const Autocast guard;
      const at::Tensor output = replica.forward(rowsOf(index));
      EXPECT_EQ(output.scalar_type(), at::kBFloat16);
      return output.to(at::kFloat).square().mean();
    });
    EXPECT_LT(largestErrorOf(net), kErrorOfBfloat16);
    EXPECT_GT(largestErrorOf(net), kErrorOfFloat32);
    const at::NoGradGuard noGrad;
    for (at::Tensor& parameter : net->parameters()) parameter.mul_(-2);
  }
}

TEST(ReplicaSet, SharesTheIntraOpThreads) {
  TiedNet net;
  auto countInNewThread = [] {
    int count = 0;
    std::thread([&] { count = at::get_num_threads(); }).join();
    return count;
  };
  const int here = at::get_num_threads(), inNewThread = countInNewThread();
  std::set<std::thread::id> threads;
  Mutex mutex;
  auto countIn = [&](ReplicaSet<TiedNet>& replicas) {
    std::set<int> counts;
    for (int pass = 0; pass < 2; ++pass)
      replicas.backward([&](TiedNetImpl& replica, int index) {
        at::Tensor loss = lossOfShard(replica, index, 0);
        MutexLock lock(mutex);
        counts.insert(at::get_num_threads());
        threads.insert(std::this_thread::get_id());
        return loss;
      });
    return counts;
  };
  ReplicaSet<TiedNet> some(net, {.replicas = 3, .intraOpThreads = inNewThread + 2});
  EXPECT_EQ(countIn(some), std::set<int>{inNewThread + 2});
  EXPECT_EQ(countInNewThread(), inNewThread);
  EXPECT_EQ(threads.size(), 3U);
  EXPECT_FALSE(threads.contains(std::this_thread::get_id()));
  ReplicaSet<TiedNet> many(net, {.replicas = here + 1});
  EXPECT_EQ(countIn(many), std::set<int>{1});
  EXPECT_EQ(at::get_num_threads(), here);
  EXPECT_EQ(countInNewThread(), inNewThread);
}

// Each constructs sets while others do.
TEST(ReplicaSet, LeavesTheThreadsOfLaterThreadsAlone) {
  auto countInNewThread = [] {
    int count = 0;
    std::thread([&] { count = at::get_num_threads(); }).join();
    return count;
  };
  const int before = countInNewThread();
  std::vector<std::thread> makers;
  for (int maker = 0; maker < 4; ++maker)
    makers.emplace_back([maker, before] {
      TiedNet net;
      for (int i = 0; i < 50; ++i) {
        const ReplicaSet<TiedNet> set(net, {.replicas = 2, .intraOpThreads = before + 1 + maker});
      }
    });
  for (std::thread& maker : makers) maker.join();
  EXPECT_EQ(countInNewThread(), before);
}

// What the thread that calls `body` computes is computed in three threads. Skips where these are not of OpenMP.
void inThreeThreads(const std::function<void()>& body) {
  if (!at::hasOpenMP() || ::dlsym(RTLD_DEFAULT, "omp_pause_resource_all") == nullptr)
    GTEST_SKIP() << "libtorch has other threads";
  const int threads = at::get_num_threads();
  std::thread([&] {
    at::set_num_threads(3);
    body();
  }).join();
  at::set_num_threads(threads);  // for later threads
}

void computeMuch() { at::ones({1 << 20}).add_(1); }

std::set<std::string> threadIds() {
  std::set<std::string> ids;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task"))
    ids.insert(thread.path().filename());
  return ids;
}

// They would look for more work for a while, on the cores of the replicas.
TEST(ReplicaSet, EndsTheIdleThreadsOfTheCaller) {
  inThreeThreads([] {
    TiedNet net;
    ReplicaSet<TiedNet> replicas(net, {.replicas = 2, .intraOpThreads = 1});
    for (int pass = 0; pass < 2; ++pass) {
      const std::set<std::string> before = threadIds();
      computeMuch();
      std::set<std::string> idle = threadIds();
      for (const std::string& id : before) idle.erase(id);
      EXPECT_EQ(idle.size(), 2U);
      const auto haveEnded = [&] {
        const std::set<std::string> now = threadIds();
        return std::ranges::none_of(idle, [&](const std::string& id) { return now.contains(id); });
      };
      replicas.backward([&](TiedNetImpl& replica, int index) {
        EXPECT_TRUE(eventually(haveEnded));
        return lossOfShard(replica, index, 0);
      });
    }
  });
}

// Which has none of these threads, and could wait for them for ever.
TEST(IdleThreads, AreLeftAloneInAForkedChild) {
  inThreeThreads([] {
    computeMuch();
    const pid_t child = ::fork();
    if (child == 0) {
      ::alarm(20);
      ddp::endIdleThreads();
      ::_exit(0);
    }
    int status = -1;
    EXPECT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  });
}

std::atomic<int> endedThreads = 0;

TEST(ReplicaSet, EndsItsThreads) {
  TiedNet net;
  endedThreads = 0;
  {
    ReplicaSet<TiedNet> replicas(net, {.replicas = 3});
    replicas.backward([&](TiedNetImpl& replica, int index) {
      struct AtEnd {
        ~AtEnd() { ++endedThreads; }
      };
      thread_local AtEnd atEnd;
      static_cast<void>(&atEnd);
      return lossOfShard(replica, index, 0);
    });
    EXPECT_EQ(endedThreads, 0);
  }
  EXPECT_EQ(endedThreads, 3);
}

}  // namespace
}  // namespace treadle::test::replica_threads_test

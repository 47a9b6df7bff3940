// Two ranks of a group in one distributed pass: rank 0's loss goes through rank 1's replica too.

#include <map>
#include <memory>

#include "tests/support/expect_error.h"
#include "tests/train/ddp/apart.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::ddp_test {
namespace {

// The replica that a remote function finds on its worker.
struct Replicas {
  Mutex mutex;
  std::map<int, std::shared_ptr<DistributedDataParallel<Net>>> of TREADLE_GUARDED_BY(mutex);

  void put(int rank, std::shared_ptr<DistributedDataParallel<Net>> replica) {
    MutexLock lock(mutex);
    of[rank] = std::move(replica);
  }
  std::shared_ptr<DistributedDataParallel<Net>> at(int rank) {
    MutexLock lock(mutex);
    return of.at(rank);
  }
};

Replicas& replicas() {
  static Replicas replicas;
  return replicas;
}

at::Tensor forwardThere(CallContext& call, const at::Tensor& input, bool skip) {
  return replicas().at(call.worker().self().rank)->forward(input, skip);
}

// Which ranks leave out `skipped`, whose bucket then goes at the end of the pass.
struct Case {
  AutogradMode mode;
  bool skipHere, skipThere;
};

class SharedPass : public ::testing::TestWithParam<Case> {};

TEST_P(SharedPass, EqualsOneProcess) {
  const auto [mode, skipHere, skipThere] = GetParam();
  TensorJob job(ranks(2), Functions().add<&forwardThere>("forwardThere"), {.mode = mode});
  job.onAll([&](Worker& worker) {
    replicas().put(worker.self().rank, std::make_shared<DistributedDataParallel<Net>>(
                                           Net(0), ProcessGroup::make(worker, job.names()), smallBuckets()));
  });
  Net alone(0);
  auto lossAlone = [&](int rank, bool skip) { return alone->forward(inputOf(rank, 0), skip).square().mean(); };
  ((lossAlone(0, skipHere) + lossAlone(1, skipThere)) / 2).backward();
  {
    AutogradContext context(job[0]);
    const at::Tensor here = replicas().at(0)->forward(inputOf(0, 0), skipHere).square().mean();
    const at::Tensor there = job[0].call<&forwardThere>("rank1", inputOf(1, 0), skipThere).square().mean();
    context.backward({here + there});
    for (const int rank : {0, 1}) {
      for (const auto& entry : alone->named_parameters()) {
        const at::Tensor parameter = (*replicas().at(rank))->named_parameters()[entry.key()];
        const at::Tensor found = gradient(job[static_cast<size_t>(rank)], context.id(), parameter);
        const at::Tensor& wanted = entry.value().grad();
        EXPECT_TRUE(wanted.defined() ? close(found, wanted) : ::testing::AssertionResult(!found.defined()))
            << entry.key() << " on rank " << rank;
      }
    }
  }
  for (int rank : {0, 1}) replicas().put(rank, nullptr);
}

// The replica on rank 1 waits for a gradient that never comes, so it has no part in the averages. Rank 0 waits for it
// in vain, but that is the consequence, and the error names the cause.
TEST(FailedSharedPass, NamesTheMessageWithoutAGradient) {
  TensorJob job(ranks(2), Functions().add<&forwardThere>("forwardThere"), {.mode = AutogradMode::kFast});
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names(), {.timeout = std::chrono::seconds(2)});
    replicas().put(worker.self().rank, std::make_shared<DistributedDataParallel<Net>>(Net(0), group, smallBuckets()));
  });
  {
    AutogradContext context(job[0]);
    const at::Tensor here = replicas().at(0)->forward(inputOf(0, 0), false).square().mean();
    const at::Tensor there = job[0].call<&forwardThere>("rank1", inputOf(1, 0), false).square().mean();
    const at::Tensor unused = job[0].call<&forwardThere>("rank1", inputOf(1, 1), false);
    const Status failure = statusOf<StateError>([&] { context.backward({here + there}); });
    EXPECT_TRUE(contains(failure.message(), "never got a gradient"));
  }
  for (int rank : {0, 1}) replicas().put(rank, nullptr);
}

at::Tensor leafThere() { return at::ones({2}, at::kDouble).requires_grad_(); }

// In FAST mode the server alone knows that what it sent got no gradient, and rank 1 has its averages by then.
TEST(FailureOnAServer, LeavesTheRankBehindWhoseContextItIs) {
  std::vector<std::string> names = ranks(2);
  names.emplace_back("server");
  TensorJob job(names, Functions().add<&leafThere>("leafThere"), {.mode = AutogradMode::kFast});
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    if (rank == 2) return;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, ranks(2)), smallBuckets());
    const auto pass = [&](int step, bool fails) {
      AutogradContext context(worker);
      if (fails) worker.call<&leafThere>("server");
      context.backward({ddp.forward(inputOf(rank, step), false).square().mean()});
      Net alone(0);
      alone->forward(at::cat({inputOf(0, step), inputOf(1, step)}), false).square().mean().backward();
      EXPECT_TRUE(close(context.gradient(net->first), alone->first.grad()));
    };
    pass(0, /*fails=*/false);
    if (rank == 1) {
      EXPECT_TRUE(contains(messageOf<StateError>([&] { pass(1, /*fails=*/true); }), "never got a gradient"));
    } else {
      pass(1, /*fails=*/false);
    }
    expectApartAndRebind(ddp, worker, "rank1", [&] { pass(2, /*fails=*/false); });
    pass(3, /*fails=*/false);
  });
}

std::vector<Case> cases() {
  std::vector<Case> cases;
  for (AutogradMode mode : {AutogradMode::kSmart, AutogradMode::kFast})
    for (bool skipHere : {false, true})
      for (bool skipThere : {false, true}) cases.push_back({mode, skipHere, skipThere});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Modes, SharedPass, ::testing::ValuesIn(cases()), [](const auto& info) {
  return std::string(info.param.mode == AutogradMode::kSmart ? "smart" : "fast") +
         (info.param.skipHere ? "SkipsHere" : "") + (info.param.skipThere ? "SkipsThere" : "");
});

}  // namespace
}  // namespace treadle::test::ddp_test

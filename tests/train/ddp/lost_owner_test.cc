// A worker that is no rank of the group runs a distributed pass over the replicas of all ranks, and is killed when the
// replicas have filled their first bucket.

#include <array>
#include <memory>

#include "tests/support/gate.h"
#include "tests/train/ddp/net.h"
#include "treadle/tensor/autograd/backward.h"

namespace treadle::test::lost_owner_test {
namespace {

using namespace ddp_test;

constexpr int kRanks = 2;
constexpr size_t kOwner = kRanks;

// The replica on each rank, for functions that run there.
std::array<std::shared_ptr<Net>, kRanks> nets;

at::Tensor productOf(CallContext& call, const std::string& parameter, const at::Tensor& factor) {
  return (*nets.at(static_cast<size_t>(call.worker().self().rank)))->named_parameters()[parameter] * factor;
}

class LostOwner : public ::testing::Test {
 protected:
  LostOwner() {
    for (auto& net : nets) net = std::make_shared<Net>(0);
    onRanks([&](Worker& worker, size_t rank) {
      replicas.at(rank) = std::make_unique<DistributedDataParallel<Net>>(
          *nets.at(rank), ProcessGroup::make(worker, ranks(kRanks)), smallBuckets());
    });
  }
  ~LostOwner() override {
    replicas = {};
    nets = {};
  }

  void onRanks(const std::function<void(Worker&, size_t)>& body) {
    job.onAll([&](Worker& worker) {
      if (const auto rank = static_cast<size_t>(worker.self().rank); rank != kOwner) body(worker, rank);
    });
  }

  // Rank `rank` sends the owner two messages of the context, and gets back the gradient of the first one, which fills
  // the bucket of `last`. The other buckets wait. Returns the pass there when it has nothing left to do.
  std::shared_ptr<autograd::Pass> fillOneBucket(size_t rank, const autograd::ContextPtr& own, int64_t passId) {
    const std::string name = job.names()[rank];
    Worker& owner = job[kOwner];
    const at::Tensor factor = at::ones({1}, at::kDouble);
    {
      autograd::CurrentContext current(autograd::interceptorOf(owner), own);
      for (const char* parameter : {"last", "first"})
        products.push_back(owner.call<&productOf>(name, std::string(parameter), factor));
    }
    const autograd::PassId id{own->id, passId, false};
    owner.call<&autograd::onBegin>(name, autograd::BeginMessage{id, {0, 1}});
    const std::shared_ptr<autograd::Pass> pass = passAt(rank, id);
    Gate hasGradient;
    const auto hook = (*nets.at(rank))->last.register_hook([&](const at::Tensor&) { hasGradient.open(); });
    const at::Tensor gradient = at::ones_like((*nets.at(rank))->last).detach();
    waiting.push_back(owner.async<&autograd::onGradients>(
        name, autograd::GradientMessage{id, {{0, {autograd::MaybeGradient(gradient)}}}}));
    hasGradient.wait();
    EXPECT_TRUE(eventually([&] { return pass->idle(); })) << "a thread of the pass would end it";
    (*nets.at(rank))->last.remove_hook(hook);
    return pass;
  }

  std::shared_ptr<autograd::Pass> passAt(size_t rank, const autograd::PassId& id) {
    const autograd::ContextPtr context = valueOrThrow(autograd::interceptorOf(job[rank]).contexts().find(id.context));
    MutexLock lock(context->mutex);
    return context->find(id.pass)->pass;
  }

  // Whether no pass has the `.grad` of the replica's last parameter: it is given back at the very end of a pass.
  bool isFree(size_t rank) {
    autograd::LeafSlots& slots = autograd::interceptorOf(job[rank]).contexts().slots();
    const at::Tensor& last = (*nets.at(rank))->last;
    if (!slots.claim(last, /*contextId=*/1).ok()) return false;
    slots.release(last);
    return true;
  }

  // A local pass of both ranks over the same group.
  void expectNextPassIsRight() {
    Net alone(0);
    alone->forward(at::cat({inputOf(0, 1), inputOf(1, 1)}), false).square().mean().backward();
    onRanks([&](Worker&, size_t rank) {
      Net& net = *nets.at(rank);
      net->zero_grad();
      replicas.at(rank)->forward(inputOf(static_cast<int>(rank), 1), false).square().mean().backward();
      for (const auto& entry : alone->named_parameters())
        EXPECT_TRUE(close(net->named_parameters()[entry.key()].grad(), entry.value().grad())) << entry.key();
    });
  }

  Counter ended;  // outlives the job
  TensorJob job{{"rank0", "rank1", "owner"}, Functions().add<&productOf>("productOf")};
  std::array<std::unique_ptr<DistributedDataParallel<Net>>, kRanks> replicas;
  std::vector<at::Tensor> products;  // what came back: while they live, their messages may get gradients
  std::vector<Future<autograd::EndedRanks>> waiting;
};

TEST_F(LostOwner, EndsThePassOnAllRanksAndTheNextOneIsRight) {
  autograd::ContextPtr own = autograd::interceptorOf(job[kOwner]).contexts().create();
  const int64_t passId = autograd::interceptorOf(job[kOwner]).contexts().nextId();
  std::array<std::weak_ptr<autograd::Pass>, kRanks> passes;
  for (size_t rank = 0; rank < kRanks; ++rank) {
    const std::shared_ptr<autograd::Pass> pass = fillOneBucket(rank, own, passId);
    EXPECT_TRUE(pass->hasCallbacks()) << "the replica has no part in the pass";
    pass->onFinish([&](const Status& outcome) {
      EXPECT_FALSE(outcome.ok());
      io::Executor::Blocking mayWait;
      EXPECT_TRUE(mayWait.status().ok()) << mayWait.status().toString();
      ended.add();
    });
    passes.at(rank) = pass;
  }
  own.reset();
  job.kill(kOwner);
  ended.waitFor(kRanks);
  for (size_t rank = 0; rank < kRanks; ++rank)
    EXPECT_TRUE(eventuallyReleased([&] { return passes.at(rank).expired() && isFree(rank); }));
  expectNextPassIsRight();
}

}  // namespace
}  // namespace treadle::test::lost_owner_test

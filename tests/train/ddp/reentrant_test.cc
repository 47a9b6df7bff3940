// Re-entrant checkpointing: nodes of a backward pass compute a segment again and call backward() on it.

#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <optional>
#include <stdexcept>
#include <utility>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/train/ddp/net.h"
#include "treadle/tensor/collective/collectives.h"

namespace treadle::test::ddp_test {
namespace {

using Segment = std::function<at::Tensor(const at::Tensor&)>;

// As torch.utils.checkpoint with use_reentrant. The segment must live until backward has run.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& input, int64_t segment) {
    context->saved_data["segment"] = segment;
    context->save_for_backward({input});
    return segmentAt(segment)(input);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor input = context->get_saved_variables()[0].detach().requires_grad_();
    at::AutoGradMode on(true);
    const at::Tensor output = segmentAt(context->saved_data["segment"].toInt())(input);
    torch::autograd::backward({output}, {gradients[0]});
    return {input.grad(), at::Tensor()};
  }
  static const Segment& segmentAt(int64_t address) { return *reinterpret_cast<const Segment*>(address); }
};

at::Tensor checkpoint(const at::Tensor& input, const Segment& segment) {
  return Checkpoint::apply(input, reinterpret_cast<int64_t>(&segment));
}

// Which parts of the network are segments.
enum class Segments {
  kFirstLayer,  // the pass comes to other parameters before
  kAll,         // the first gradient comes in a pass within the pass
  kNested,      // a segment within a segment
  kTwice,       // two segments use the same parameter, and one is used outside as well
};

class Model {
 public:
  Model(Net net, Segments segments) : net_(std::move(net)) {
    const Segment first = [this](const at::Tensor& input) { return at::tanh(input.mm(net_->first) + net_->bias); };
    const Segment all = [this](const at::Tensor& input) { return net_->forward(input, false); };
    const Segment hidden = [this](const at::Tensor& input) { return at::tanh(input.mm(net_->skipped)); };
    switch (segments) {
      case Segments::kFirstLayer: inner_ = first; break;
      case Segments::kAll: outer_ = all; break;
      case Segments::kNested:
        inner_ = first;
        outer_ = [this](const at::Tensor& input) { return rest(checkpoint(input, inner_)); };
        break;
      case Segments::kTwice: inner_ = hidden; break;
    }
    segments_ = segments;
  }
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  at::Tensor loss(const at::Tensor& batch) {
    const at::Tensor input = batch.detach().requires_grad_();
    switch (segments_) {
      case Segments::kFirstLayer: return rest(checkpoint(input, inner_)).square().mean();
      case Segments::kAll:
      case Segments::kNested: return checkpoint(input, outer_).square().mean();
      case Segments::kTwice: break;
    }
    at::Tensor hidden = at::tanh(input.mm(net_->first) + net_->bias);
    hidden = at::tanh(checkpoint(hidden, inner_).mm(net_->skipped));
    return checkpoint(hidden, inner_).mm(net_->last).square().mean();
  }

 private:
  at::Tensor rest(const at::Tensor& hidden) { return at::tanh(hidden.mm(net_->skipped)).mm(net_->last) + net_->offset; }

  Net net_;
  Segments segments_;
  Segment inner_, outer_;
};

class Reentrant : public ::testing::TestWithParam<Segments> {};

TEST_P(Reentrant, PassesEqualOneProcess) {
  TensorJob job(ranks(2));
  Net alone(0);
  Model expected(alone, GetParam());
  for (int step = 0; step < 3; ++step)
    for (int rank = 0; rank < 2; ++rank) expected.loss(inputOf(rank, step)).div(2).backward();
  job.onAll([&](Worker& worker) {
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    Model model(net, GetParam());
    for (int step = 0; step < 3; ++step) {
      std::optional<ddp::NoSync> unaveraged;
      if (step == 1) unaveraged.emplace(ddp.noSync());
      model.loss(inputOf(worker.self().rank, step)).backward();
    }
    for (const auto& entry : alone->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[entry.key()].grad(), entry.value().grad())) << entry.key();
  });
}

// The same network on each rank, and other passes within the pass.
TEST(ReentrantRanks, MayHaveOtherSegments) {
  TensorJob job(ranks(3));
  Net alone(0);
  for (int rank = 0; rank < 3; ++rank) alone->forward(inputOf(rank, 0), false).square().mean().div(3).backward();
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    Model(net, std::vector{Segments::kFirstLayer, Segments::kAll, Segments::kNested}[static_cast<size_t>(rank)])
        .loss(inputOf(rank, 0))
        .backward();
    for (const auto& entry : alone->named_parameters())
      EXPECT_TRUE(close(net->named_parameters()[entry.key()].grad(), entry.value().grad())) << entry.key();
  });
}

// Each has buckets that go again, which begin on all ranks before a rank waits for those of one module.
TEST(ReentrantRanks, MayHaveTwoModulesInAnotherOrder) {
  TensorJob job(ranks(2));
  Net aloneA(0), aloneB(1);
  for (Net& alone : {std::ref(aloneA), std::ref(aloneB)})
    for (int rank = 0; rank < 2; ++rank) Model(alone, Segments::kTwice).loss(inputOf(rank, 0)).div(2).backward();
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net a(0), b(1);
    DistributedDataParallel<Net> ddpA(a, ProcessGroup::make(worker, job.names()), smallBuckets());
    DistributedDataParallel<Net> ddpB(b, ProcessGroup::make(worker, job.names()), smallBuckets());
    Model first(rank == 0 ? a : b, Segments::kTwice), second(rank == 0 ? b : a, Segments::kTwice);
    const at::Tensor loss = first.loss(inputOf(rank, 0));
    (loss + second.loss(inputOf(rank, 0))).backward();
    for (const auto& [net, alone] : {std::pair(a, aloneA), std::pair(b, aloneB)})
      for (const auto& entry : alone->named_parameters())
        EXPECT_TRUE(close(net->named_parameters()[entry.key()].grad(), entry.value().grad())) << entry.key();
  });
}

class SegmentsOnce : public Reentrant {};

// Rank 1 does by hand what a pass sends; another operation would not match the barrier.
TEST_P(SegmentsOnce, SendEachBucketOnce) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    Net net(0);
    DistributedDataParallel<Net> ddp(net, group, smallBuckets());
    if (worker.self().rank == 0) {
      Model(net, GetParam()).loss(inputOf(0, 0)).backward();
    } else {
      answerPass(group, net->parameters(), smallBuckets());
    }
    barrier(group).wait();
  });
}

std::string nameOf(const ::testing::TestParamInfo<Segments>& info) {
  return std::vector<std::string>{"firstLayer", "all", "nested", "twice"}[static_cast<size_t>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Models, Reentrant,
                         ::testing::Values(Segments::kFirstLayer, Segments::kAll, Segments::kNested, Segments::kTwice),
                         nameOf);
INSTANTIATE_TEST_SUITE_P(Models, SegmentsOnce,
                         ::testing::Values(Segments::kFirstLayer, Segments::kAll, Segments::kNested), nameOf);

// Rank 0 makes no other pass before the others know.
TEST(FailedLocalPass, IsReportedAtOnce) {
  TensorJob job(ranks(2));
  for (const bool inSegment : {false, true}) {
    Gate known;
    job.onAll([&](Worker& worker) {
      Net net(0);
      GroupOptions options{.name = inSegment ? "segment" : "plain"};
      DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names(), options), smallBuckets());
      const at::Tensor input = inputOf(worker.self().rank, 0).requires_grad_();
      const Segment all = [&](const at::Tensor& x) { return ddp.forward(Broken::apply(x), false); };
      const at::Tensor loss = (inSegment ? checkpoint(input, all) : all(input)).square().mean();
      if (worker.self().rank == 0) {
        EXPECT_THROW(loss.backward(), std::runtime_error);
        known.wait();
        return;
      }
      EXPECT_THROW(ddp.forward(input, false).square().mean().backward(), CancelledError);
      known.open();
    });
  }
}

// The node goes on without the segment's gradients, and so does the pass.
TEST(FailedLocalPass, ThatANodeSurvivesDoesNotEndThePassAroundIt) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    Net net(0), alone(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    const at::Tensor loss = ddp.forward(inputOf(worker.self().rank, 0), true).square().mean();
    net->bias.register_hook([&](const at::Tensor&) {
      at::AutoGradMode on(true);
      const at::Tensor input = inputOf(0, 1).requires_grad_();
      EXPECT_THROW(at::tanh(Broken::apply(input).mm(net->skipped.slice(0, 0, 5))).sum().backward(), std::runtime_error);
    });
    loss.backward();
    alone->forward(at::cat({inputOf(0, 0), inputOf(1, 0)}), true).square().mean().backward();
    for (const std::string name : {"first", "bias", "last"})
      EXPECT_TRUE(close(net->named_parameters()[name].grad(), alone->named_parameters()[name].grad())) << name;
  });
}

}  // namespace
}  // namespace treadle::test::ddp_test

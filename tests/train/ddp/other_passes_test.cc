// Local backward passes over the parameters while another pass is under way, a distributed one or a local one.

#include <torch/csrc/autograd/autograd.h>

#include <future>
#include <optional>
#include <utility>

#include "tests/support/expect_error.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::ddp_test {
namespace {

// A distributed pass of two ranks without `skipped`, in the middle of which `inTheMiddle` runs in a hook; the averages
// are right all the same, and those of a local pass afterwards. `after` sees what is in between.
using Action = std::function<void(Net& net)>;

void passWith(const Action& inTheMiddle, const Action& after) {
  TensorJob job(ranks(2));
  Net alone(0);
  alone->forward(at::cat({inputOf(0, 0), inputOf(1, 0)}), true).square().mean().backward();
  job.onAll([&](Worker& worker) {
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    auto loss = [&] { return ddp.forward(inputOf(worker.self().rank, 0), true).square().mean(); };
    bool isFirst = true;
    net->bias.register_hook([&](const at::Tensor&) {
      at::AutoGradMode on(true);
      if (std::exchange(isFirst, false)) inTheMiddle(net);
    });
    AutogradContext context(worker);
    context.backward({loss()});
    EXPECT_FALSE(context.gradient(net->skipped).defined());
    after(net);
    net->zero_grad();
    loss().backward();
    for (const std::string name : {"first", "bias", "last"}) {
      const at::Tensor parameter = net->named_parameters()[name];
      const at::Tensor expected = alone->named_parameters()[name].grad();
      EXPECT_TRUE(close(context.gradient(parameter), expected)) << name;
      EXPECT_TRUE(close(parameter.grad(), expected)) << name;
    }
  });
}

TEST(OtherPasses, OnAnotherThreadAreRefused) {
  const Action inTheMiddle = [](Net& net) {
    std::async(std::launch::async, [&] {
      const std::string message = messageOf<StateError>([&] { net->skipped.sum().backward(); });
      EXPECT_TRUE(contains(message, "let one end first"));
    }).get();
  };
  passWith(inTheMiddle, [](Net&) {});
}

// Their gradients are not added to those of the pass that is under way, which is averaged or not.
TEST(OtherPasses, OnAnotherThreadAreRefusedBesideALocalOne) {
  for (const bool isAveraged : {true, false}) {
    TensorJob job(ranks(2));
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      Net net(0), alone(0);
      DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
      int calls = 0;
      net->bias.register_hook([&](const at::Tensor&) {
        if (++calls > 1) return;
        std::async(std::launch::async, [&] {
          const std::string message = messageOf<StateError>([&] { net->last.sum().backward(); });
          EXPECT_TRUE(contains(message, "let one end first")) << message;
        }).get();
      });
      std::optional<ddp::NoSync> unaveraged;
      if (!isAveraged) unaveraged.emplace(ddp.noSync());
      ddp.forward(inputOf(rank, 0), true).square().mean().backward();
      EXPECT_EQ(calls, 1);
      const at::Tensor inputs = isAveraged ? at::cat({inputOf(0, 0), inputOf(1, 0)}) : inputOf(rank, 0);
      alone->forward(inputs, true).square().mean().backward();
      for (const std::string name : {"first", "bias", "last"})
        EXPECT_TRUE(close(net->named_parameters()[name].grad(), alone->named_parameters()[name].grad())) << name;
    });
  }
}

// They are the affair of the node, which names the leaves.
TEST(OtherPasses, ThatANodeStartsAreLeftAlone) {
  const Action inTheMiddle = [](Net& net) {
    torch::autograd::backward({net->skipped.sum()}, {}, {}, /*create_graph=*/false, {net->skipped});
  };
  const Action after = [](Net& net) { EXPECT_TRUE(close(net->skipped.grad(), at::ones_like(net->skipped))); };
  passWith(inTheMiddle, after);
}

}  // namespace
}  // namespace treadle::test::ddp_test

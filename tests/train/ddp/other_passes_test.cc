// Local backward passes over the parameters while a distributed pass is under way.

#include <torch/csrc/autograd/autograd.h>

#include <future>
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

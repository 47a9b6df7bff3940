// The code of docs/guide/distributed_graphs.md: five messages between four workers, two of which need each other's
// gradients. It is the situation of PyTorch's RFC on distributed autograd (pytorch/pytorch issue 23110): what worker1
// knows by itself does not tell whether the fourth message takes part.

#include <treadle/autograd.h>

#include <fstream>

#include "tests/support/places.h"
#include "tests/support/tensor_job.h"

namespace {

// [graph-functions]
at::Tensor sine(const at::Tensor& x) { return x.sin(); }
at::Tensor triple(const at::Tensor& x) { return x * 3; }

// On worker1, by way of worker2. The result stays on worker1.
at::Tensor prepare(treadle::CallContext& call, const treadle::RRef<at::Tensor>& weight) {
  return call.worker().call<&sine>("worker2", weight.localValue() * 2) + 1;
}
// [/graph-functions]

// Of worker1; the tests look at its gradient.
at::Tensor theWeight() {
  static const at::Tensor weight = at::tensor({0.5, -1.0}, at::kDouble).requires_grad_();
  return weight;
}

treadle::Functions functions() {
  return treadle::Functions().add<&sine>("sine").add<&triple>("triple").add<&prepare>("prepare").add<&theWeight>(
      "theWeight");
}

class DistributedGraph : public ::testing::Test {
 protected:
  // d/dweight of sum(factor * (sin(2 weight) + 1)).
  at::Tensor expected(double factor) const { return factor * 2 * (2 * theWeight().detach()).cos(); }

  treadle::test::TensorJob job{{"worker0", "worker1", "worker2", "worker3"}, functions()};
  treadle::Worker& worker = job[0];
  treadle::RRef<at::Tensor> weight = worker.remote<&theWeight>("worker1");
  at::Tensor gradientThere(const treadle::AutogradContext& context) {
    return treadle::gradient(job[1], context.id(), theWeight());
  }
};

TEST_F(DistributedGraph, OnlyWhatTheRootsDependOnTakesPart) {
  for (bool everything : {false, true}) {
    // [graph]
    treadle::AutogradContext context(worker);
    treadle::RRef<at::Tensor> prepared =
        worker.remote<&prepare>("worker1", weight);  // messages 1 and 2: to worker2 and back
    at::Tensor tripled =
        worker.call<&triple>("worker3", prepared);  // 3 and 4: from worker1 to worker3, from there to us
    at::Tensor plain = prepared.toHere();           // 5: from worker1 to us
    // [/graph]
    EXPECT_EQ(job.sendsKept(context.id()), 5U);
    context.backward({everything ? (plain + tripled).sum() : plain.sum()});
    EXPECT_TRUE(treadle::test::close(gradientThere(context), expected(everything ? 4 : 1)));
  }
}

TEST_F(DistributedGraph, InFastModeNamesWhatGotNoGradient) {
  treadle::AutogradContext context(worker, {.mode = treadle::AutogradMode::kFast});
  treadle::RRef<at::Tensor> prepared = worker.remote<&prepare>("worker1", weight);
  at::Tensor tripled = worker.call<&triple>("worker3", prepared);
  at::Tensor plain = prepared.toHere();
  std::string why = treadle::test::messageOf<treadle::StateError>([&] { context.backward({plain.sum()}); });
  EXPECT_TRUE(treadle::test::contains(why, "worker 'worker3' (rank 3) sent"));
  EXPECT_TRUE(treadle::test::contains(why, "to worker 'worker0' (rank 0) (triple) tensors [0]"));
}

TEST_F(DistributedGraph, IsDescribed) {
  treadle::AutogradContext context(worker);
  treadle::RRef<at::Tensor> prepared = worker.remote<&prepare>("worker1", weight);
  at::Tensor tripled = worker.call<&triple>("worker3", prepared);
  at::Tensor plain = prepared.toHere();
  // [describe]
  at::Tensor loss = (plain + tripled).sum();
  std::string text = treadle::describe(context, treadle::GraphFormat::kText, {loss});
  std::string drawing = treadle::describe(context, treadle::GraphFormat::kGraphviz);  // for `dot -Tsvg`
  // [/describe]
  std::ifstream page(treadle::test::sourcePath("docs/guide/distributed_graphs.md"));
  const std::string whole{std::istreambuf_iterator<char>(page), {}};
  EXPECT_TRUE(treadle::test::contains(whole, "```text\n" + text + "```"));
  EXPECT_TRUE(treadle::test::contains(drawing, "digraph autograd {"));
  for (const char* part : {"subgraph cluster3 {", "[shape=box, label=\"leaf double [2]\"]",
                           "w1n2 -> w2n0 [style=dashed]", "w1n5 -> w3n0 [style=dashed]", "w1n6 -> w0n0 [style=dashed]"})
    EXPECT_TRUE(treadle::test::contains(drawing, part));
}

TEST(Describe, NamesAWorkerThatIsLost) {
  treadle::test::TensorJob job{{"A", "B"}, functions()};
  treadle::AutogradContext context(job[0]);
  at::Tensor y = job[0].call<&triple>("B", at::ones({2}).requires_grad_());
  job.kill(1);
  EXPECT_EQ(treadle::test::statusOf<treadle::PeerLostError>([&] { treadle::describe(context); }).worker(), "B");
}

}  // namespace

// libtorch's operators elsewhere, and on references to tensors.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"
#include "treadle/autograd.h"
#include "treadle/core/io/serving.h"
#include "treadle/rpc.h"

namespace treadle::operators_test {
namespace {

using test::contains;
using test::messageOf;

at::Tensor same(const at::Tensor& tensor) { return tensor; }
at::Tensor failing() { throw std::runtime_error("nothing came of it"); }

class Operators : public ::testing::Test {
 protected:
  RRef<at::Tensor> at_(const char* owner, const at::Tensor& value) { return a.remote<&same>(owner, value); }
  void expectEqual(const at::Tensor& expected, const RRef<at::Tensor>& got) {
    at::Tensor here = got.toHere();
    EXPECT_EQ(expected.scalar_type(), here.scalar_type());
    EXPECT_TRUE(expected.sizes() == here.sizes() && at::allclose(expected, here)) << expected << here;
  }

  test::TensorJob job{{"a", "b", "c"}, Functions().add<&same>("same").add<&failing>("failing")};
  Worker& a = job[0];
  const at::Tensor x = at::rand({3, 4}) + 0.5, y = at::rand({3, 4}) + 0.5, square = at::rand({4, 4});
};

TEST_F(Operators, runElsewhereByTheNameOfTheirSchema) {
  std::vector<at::Tensor> sum = op(a, "b", "aten::add.Tensor", {x, y, 2});
  ASSERT_EQ(1U, sum.size());
  EXPECT_TRUE(at::allclose(x + 2 * y, sum[0]));
  EXPECT_TRUE(at::allclose(x + y, op(a, "b", "aten::add.Tensor", {x, y})[0])) << "what is left out has its default";
  std::vector<at::Tensor> topk = opAsync(a, 2, "aten::topk", {x, 2, 1, true, true}).wait();
  ASSERT_EQ(2U, topk.size());
  EXPECT_TRUE(at::equal(std::get<1>(at::topk(x, 2)), topk[1]));
  std::vector<at::Tensor> parts = opRemote(a, "c", "aten::split.Tensor", {x, 2, 0}).toHere();
  ASSERT_EQ(2U, parts.size());
  EXPECT_TRUE(at::equal(x.slice(0, 2), parts[1]));
}

// As those of any blocking call are: nothing is copied for the time of the call.
TEST(OperatorArguments, areReadWhereTheyLieWhileTheCallerWaits) {
  test::WorkerJob job(
      {"a", "b"}, {}, [](JoinOptions& options) { options.channels = Channels{.sharedMemory = false}; },
      [](JoinOptions options) { return treadle::join(std::move(options)); });
  const at::Tensor large = at::ones({1 << 20});
  const auto readThere = [&] { return job[0].channelsTo("b").crossMemory.sentBytes; };
  // The workers must first try whether the system allows it.
  EXPECT_TRUE(test::eventually([&] {
    EXPECT_EQ(1 << 20, op(job[0], "b", "aten::sum", {large})[0].item<float>());
    return readThere() > 0;
  }));
  const uint64_t before = readThere();
  op(job[0], "b", "aten::sum", {large});
  EXPECT_EQ(before + large.nbytes(), readThere());
}

TEST_F(Operators, takeArgumentsOfAllKinds) {
  EXPECT_TRUE(at::equal(at::cat({x, y}, 1), op(a, "b", "aten::cat", {std::vector<at::Tensor>{x, y}, 1})[0]));
  EXPECT_TRUE(at::equal(x.sum({0}, true), op(a, "b", "aten::sum.dim_IntList", {x, std::vector<int64_t>{0}, true})[0]));
  EXPECT_TRUE(at::equal(x.to(at::kDouble), op(a, "b", "aten::to.dtype", {x, static_cast<int64_t>(at::kDouble)})[0]));
  EXPECT_TRUE(at::allclose(at::clamp(x, 0.7), op(a, "b", "aten::clamp", {x, 0.7, c10::IValue()})[0]));
  EXPECT_TRUE(at::allclose(at::einsum("ij,kj->ik", {x, y}),
                           op(a, "b", "aten::einsum", {"ij,kj->ik", std::vector<at::Tensor>{x, y}})[0]));
  at::Tensor index = at::arange(2);
  c10::List<std::optional<at::Tensor>> indexes;
  indexes.push_back(std::nullopt);
  indexes.push_back(index);
  EXPECT_TRUE(at::equal(x.index({at::indexing::Slice(), index}), op(a, "b", "aten::index.Tensor", {x, indexes})[0]));
  EXPECT_EQ(c10::complex<double>(1, 2),
            op(a, "b", "aten::full_like", {at::zeros(1, at::kComplexDouble), c10::complex<double>(1, 2)})[0]
                .item<c10::complex<double>>());
}

TEST_F(Operators, giveNumbersAsTensorsWithoutDimensions) {
  at::Tensor equal = op(a, "b", "aten::equal", {x, x.clone()})[0];
  EXPECT_EQ(at::kBool, equal.scalar_type());
  EXPECT_TRUE(equal.item<bool>());
  EXPECT_EQ(4, op(a, "b", "aten::size.int", {x, 1})[0].item<int64_t>());
}

TEST_F(Operators, areRefusedBeforeTheyAreSentOnAThreadThatMustNotWait) {
  RRef<at::Tensor> there = at_("b", x);
  there.waitUntilReady();
  const uint64_t sent = a.metrics().callsSent;
  const io::Serving reads;
  messageOf<ResourceError>([&] { op(a, "b", "aten::add.Tensor", {x, y}); });
  messageOf<ResourceError>([&] { op("aten::add.Tensor", {there, y}); });
  EXPECT_EQ(sent, a.metrics().callsSent);
}

TEST_F(Operators, thatThereAreNoneOfAreNamed) {
  EXPECT_TRUE(contains(messageOf<NotFoundError>([&] { op(a, "b", "aten::ad.Tensor", {x, y}); }), "'aten::ad.Tensor'"));
  std::string others = messageOf<NotFoundError>([&] { op(a, "b", "aten::add.Tensors", {x, y}); });
  EXPECT_TRUE(contains(others, "'aten::add.Tensor'") && contains(others, "'aten::add.Scalar'"));
  for (const char* schema : {"", "add.Tensor", "at::add", "aten::", ".", "torch.add"})
    EXPECT_TRUE(contains(messageOf<NotFoundError>([&] { op(a, "b", schema, {x, y}); }), "names are like")) << schema;
}

TEST_F(Operators, sayWhichArgumentDoesNotFit) {
  for (auto& arguments : {std::vector<c10::IValue>{x}, {x, "text"}, {x, y, 1, 2}}) {
    std::string why = messageOf<ArgumentError>([&] { op(a, "b", "aten::add.Tensor", arguments); });
    EXPECT_TRUE(contains(why, "aten::add") && contains(why, "'b'")) << why;
    EXPECT_FALSE(contains(why, "frame #")) << "no stack trace";
  }
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { op(a, "b", "aten::mm", {x, y}); }), "3x4"));
  messageOf<ArgumentError>([&] { op(a, "b", "aten::add.Tensor", {x, c10::Device("cpu")}); });
}

TEST_F(Operators, thatTrustTheirArgumentsAreRefused) {
  for (const char* schema :
       {"aten::from_file", "aten::_unsafe_index.Tensor", "aten::empty.memory_format", "aten::resize_",
        "aten::max_pool2d_with_indices_backward", "aten::set_.source_Tensor", "aten::new_empty", "quantized::add",
        "aten::segment_reduce", "aten::sparse_coo_tensor.indices_size", "aten::as_strided"})
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { op(a, "b", schema, {}); }), "is not run for others")) << schema;
}

TEST_F(Operators, thatWriteToAnArgumentAreRefused) {
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { op(a, "b", "aten::add.out", {x, y, 1, x}); }), "writes to"));
}

TEST_F(Operators, onReferencesRunAtTheirOwner) {
  for (const char* owner : {"a", "b"}) {
    RRef<at::Tensor> rx = at_(owner, x), ry = at_(owner, y), rs = at_(owner, square);
    EXPECT_EQ(owner, (rx + ry).owner().name);
    expectEqual(x + y, rx + ry);
    expectEqual(x - y, rx - ry);
    expectEqual(x * y, rx * ry);
    expectEqual(x / y, rx / ry);
    expectEqual(x + y, rx + y);
    expectEqual(y - x, y - rx);
    expectEqual(x * 2, rx * 2);
    expectEqual(2 * x, 2 * rx);
    expectEqual(1.5 - x, 1.5 - rx);
    expectEqual(x - 1.5, rx - 1.5);
    expectEqual(1.5 / x, 1.5 / rx);
    expectEqual(x / 2, rx / 2);
    expectEqual(3 + x, 3 + rx);
    expectEqual(-x, -rx);
    expectEqual(x.mm(square), rx.mm(rs));
    expectEqual(x.matmul(square), rx.matmul(square));
    expectEqual((x + y).relu().sum(), (rx + ry).relu().sum());
    std::vector<at::Tensor> both = op("aten::max.dim", {rx, 1});
    EXPECT_TRUE(at::equal(std::get<1>(x.max(1)), both.at(1)));
    EXPECT_TRUE(at::equal(x + y, opAsync("aten::add.Tensor", {rx, ry}).wait().at(0)));
    rx.add(1).toHere();
    expectEqual(x, rx);
  }
}

TEST_F(Operators, haveTheirMethodsNames) {
  RRef<at::Tensor> r = at_("b", x);
  expectEqual(x.pow(2), r.pow(2));
  expectEqual(x.pow(y), r.pow(y));
  expectEqual(x.sub(y).abs(), r.sub(y).abs());
  expectEqual(x.neg().exp(), r.neg().exp());
  expectEqual(x.log(), r.log());
  expectEqual(x.sqrt(), r.sqrt());
  expectEqual(x.sigmoid(), r.sigmoid());
  expectEqual(x.tanh(), r.tanh());
  expectEqual(x.softmax(1), r.softmax(1));
  expectEqual(x.log_softmax(0), r.log_softmax(0));
  expectEqual(x.sum({1}), r.sum({1}));
  expectEqual(x.mean(), r.mean());
  expectEqual(x.mean({0}, true), r.mean({0}, true));
  expectEqual(x.max(), r.max());
  expectEqual(x.min(), r.min());
  expectEqual(x.argmax(), r.argmax());
  expectEqual(x.argmax(1, true), r.argmax(1, true));
  expectEqual(x.t().contiguous(), r.t());
  expectEqual(x.transpose(0, 1).contiguous(), r.transpose(0, 1));
  expectEqual(x.reshape({2, 6}), r.reshape({2, 6}));
  expectEqual(x.flatten(), r.flatten());
  expectEqual(x.unsqueeze(1), r.unsqueeze(1));
  expectEqual(x, r.unsqueeze(0).squeeze(0));
  expectEqual(x.select(1, 2), r.select(1, 2));
  expectEqual(x.slice(1, 1, 4, 2), r.slice(1, 1, 4, 2));
  expectEqual(x, r.clone());
  expectEqual(x, r.detach());
  expectEqual(x.to(at::kDouble), r.to(at::kDouble));
  expectEqual(at::bmm(x.unsqueeze(0), square.unsqueeze(0)), r.unsqueeze(0).bmm(square.unsqueeze(0)));
  expectEqual(x.div(2).mul(3).add(y), r.div(2).mul(3).add(y));
}

TEST_F(Operators, ofDifferentOwnersNameBoth) {
  RRef<at::Tensor> atB = at_("b", x), atC = at_("c", x);
  std::string why = messageOf<ArgumentError>([&] { (void)(atB + atC); });
  EXPECT_TRUE(contains(why, "'b'") && contains(why, "'c'") && contains(why, "aten::add"));
  messageOf<ArgumentError>([&] { (void)op("aten::add.Tensor", {x, y}); });
  messageOf<StateError>([&] { (void)(atB + RRef<at::Tensor>()); });
}

TEST_F(Operators, tellOfFailuresWhenTheResultIsWanted) {
  RRef<at::Tensor> sum = at_("b", x) + at::rand({7});
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { sum.toHere(); }), "must match"));
  RRef<at::Tensor> nothing = a.remote<&failing>("b");
  messageOf<RemoteError>([&] { nothing.waitUntilReady(); });  // from now on the failure is known here
  RRef<at::Tensor> further = (nothing * 2).relu();
  EXPECT_TRUE(contains(messageOf<RemoteError>([&] { further.toHere(); }), "nothing came of it"));
  EXPECT_TRUE(
      contains(messageOf<ArgumentError>([&] { opRemote("aten::max.dim", {at_("b", x), 1}).toHere(); }), "2 results"));
}

TEST_F(Operators, takePartInAutograd) {
  AutogradContext context(a);
  at::Tensor weight = at::rand({3, 4}).requires_grad_(true);
  RRef<at::Tensor> loss = (a.remote<&same>("b", weight) * y).sum();
  context.backward({loss.toHere()});
  EXPECT_TRUE(at::allclose(y, context.gradient(weight)));
}

TEST_F(Operators, onWorkersWithoutTensorsAreNotOffered) {
  test::WorkerJob plain({"p"});
  EXPECT_TRUE(contains(messageOf<NotFoundError>([&] { op(plain[0], "p", "aten::add.Tensor", {x, y}); }), "treadle.op"));
}

}  // namespace
}  // namespace treadle::operators_test

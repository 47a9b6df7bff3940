// What a lossy hook holds back: it is kept by parameter, from passes that go well, without the loss scale.

#include "treadle/train/ddp/error_memory.h"

#include "tests/support/expect_error.h"
#include "tests/train/ddp/hooks.h"

namespace treadle::test::error_memory_test {
namespace {

using namespace ddp_test;

ddp::ErrorMemory memoryFor(const std::vector<at::Tensor>& tensors) {
  std::vector<HookParameter> parameters;
  for (const at::Tensor& tensor : tensors) parameters.push_back({"p" + std::to_string(parameters.size()), tensor});
  return ddp::ErrorMemory(parameters);
}

at::Tensor valueOf(const ddp::ErrorMemory& memory, size_t parameter) {
  return memory.withError(parameter, at::zeros({2}));
}

TEST(ErrorMemory, ChangesWithAPassThatGoesWellAndForParametersThatAreUsed) {
  ddp::ErrorMemory memory = memoryFor({at::zeros({2}), at::zeros({2})});
  const at::Tensor zeros = at::zeros({2}), ones = at::ones({2});
  memory.beginPass(1);
  memory.hold(0, ones.clone());
  memory.hold(1, ones.clone());
  EXPECT_TRUE(at::equal(valueOf(memory, 0), zeros)) << "before the pass has ended";
  memory.beginPass(1);
  memory.commit({true, true});
  EXPECT_TRUE(at::equal(valueOf(memory, 0), zeros)) << "of a pass before that failed";
  memory.hold(0, ones.clone());
  memory.hold(0, 2 * ones);
  memory.hold(1, ones.clone());
  memory.commit({true, false});
  EXPECT_TRUE(at::equal(valueOf(memory, 0), 2 * ones));
  EXPECT_TRUE(at::equal(valueOf(memory, 1), zeros));
  memory.beginPass(1);
  memory.hold(0, {});
  EXPECT_TRUE(memory.has(0));
  memory.commit({true, true});
  EXPECT_FALSE(memory.has(0));
}

TEST(ErrorMemory, IsKeptWithoutTheLossScale) {
  ddp::ErrorMemory memory = memoryFor({at::zeros({2})});
  memory.beginPass(8);
  memory.hold(0, at::full({2}, 24.0F));
  memory.commit({true});
  memory.beginPass(4);
  EXPECT_TRUE(at::equal(memory.withError(0, at::ones({2})), at::full({2}, 13.0F)));
  optim::NamedTensors state;
  memory.save(state, "error.");
  EXPECT_TRUE(at::equal(state.at("error.p0"), at::full({2}, 3.0F)));
}

TEST(ErrorMemory, HasFloat32ForShortGradientsAndNothingForOthers) {
  EXPECT_EQ(ddp::dtypeOfErrors(at::zeros({1}, at::kHalf)), at::kFloat);
  EXPECT_EQ(ddp::dtypeOfErrors(at::zeros({1}, at::kBFloat16)), at::kFloat);
  EXPECT_EQ(ddp::dtypeOfErrors(at::zeros({1}, at::kDouble)), at::kDouble);
  EXPECT_FALSE(ddp::dtypeOfErrors(at::zeros({1}, at::kComplexFloat)).has_value());
  ddp::ErrorMemory memory = memoryFor({at::zeros({2}, at::kHalf)});
  memory.beginPass(1);
  memory.hold(0, at::full({2}, 0x1p-20F));
  memory.commit({true});
  EXPECT_TRUE(at::equal(memory.withError(0, at::ones({2}, at::kHalf)), at::full({2}, 1 + 0x1p-20F)));
}

TEST(ErrorMemory, ComesBackAsItWas) {
  const std::vector<at::Tensor> parameters = {at::zeros({2}), at::zeros({2})};
  ddp::ErrorMemory memory = memoryFor(parameters), other = memoryFor(parameters);
  memory.beginPass(1);
  memory.hold(1, at::full({2}, 5.0F));
  memory.commit({true, true});
  optim::NamedTensors state;
  memory.save(state, "x.");
  EXPECT_EQ(state.size(), 1U);
  state["other"] = at::zeros({1});
  other.load(state, "x.");
  EXPECT_EQ(state.size(), 1U) << "what it knows is taken out";
  EXPECT_TRUE(at::equal(valueOf(other, 1), at::full({2}, 5.0F)));
  state["x.p0"] = at::zeros({3});
  EXPECT_TRUE(
      contains(messageOf<ArgumentError>([&] { other.load(state, "x."); }), "'x.p0' of the state is of shape [3]"));
}

}  // namespace
}  // namespace treadle::test::error_memory_test

// The language model and its text, which examples share.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "examples/common/causal_transformer.h"
#include "examples/common/text_windows.h"
#include "tests/examples/temp_folder.h"

namespace example {
namespace {

const TransformerOptions kSmall{.vocabulary = 10, .length = 8, .layers = 2, .width = 12, .heads = 3};

TEST(CausalTransformer, PositionsSeeNoLaterTokens) {
  at::manual_seed(1);
  CausalTransformer model(kSmall);
  at::NoGradGuard noGradients;
  const at::Tensor tokens = at::randint(10, {3, 8}, at::kLong), logits = model.forward(tokens);
  for (int64_t changed = 0; changed < 8; ++changed) {
    at::Tensor others = tokens.clone();
    others.select(1, changed).add_(1).remainder_(10);
    const at::Tensor otherLogits = model.forward(others);
    EXPECT_TRUE(at::allclose(logits.narrow(1, 0, changed), otherLogits.narrow(1, 0, changed))) << changed;
    for (int64_t later = changed; later < 8; ++later)
      EXPECT_FALSE(at::allclose(logits.select(1, later), otherLogits.select(1, later))) << changed << " " << later;
  }
}

TEST(CausalTransformer, EachParameterGetsAGradient) {
  CausalTransformer model(kSmall);
  const at::Tensor tokens = at::randint(10, {3, 8}, at::kLong);
  nextTokenLoss(model.forward(tokens), tokens).backward();
  for (const auto& parameter : model.named_parameters())
    EXPECT_TRUE(parameter.value().grad().defined()) << parameter.key();
  EXPECT_EQ(model.parameters().size(), 2 + 2 * 12 + 3u);
}

TEST(CausalTransformer, RefusesAWidthThatHeadsDoNotDivide) {
  EXPECT_THROW(CausalTransformer({.width = 10, .heads = 3}), std::invalid_argument);
}

TEST(TextWindows, HoldTheBytesAndThoseThatFollow) {
  TempFolder folder;
  writeFile(folder / "text", "abcdef\xff");
  TextWindows text(folder / "text", 4);
  ASSERT_EQ(text.size(), 3u);
  const auto batch = text.get_batch(std::vector<size_t>{2, 0});
  EXPECT_TRUE(at::equal(batch.data, at::tensor({'c', 'd', 'e', 'f', 'a', 'b', 'c', 'd'}, at::kLong).view({2, 4})));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({100, 101, 102, 255, 98, 99, 100, 101}, at::kLong).view({2, 4})));
}

std::string refusalOf(const std::string& path, int64_t length) {
  try {
    TextWindows(path, length);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "was read";
}

TEST(TextWindows, TakeTokensOfAnyAlphabet) {
  const at::Tensor tokens = at::tensor({3, 1, 2, 0}, at::kByte);
  TextWindows text(tokens, 3);
  ASSERT_EQ(text.size(), 1u);
  const auto batch = text.get_batch(std::vector<size_t>{0});
  EXPECT_TRUE(at::equal(batch.data, at::tensor({3, 1, 2}, at::kLong).view({1, 3})));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({1, 2, 0}, at::kLong).view({1, 3})));
  EXPECT_THROW(TextWindows(tokens, 4), std::invalid_argument);
}

TEST(TextWindows, RefuseAFileThatIsMissingOrShort) {
  TempFolder folder;
  writeFile(folder / "text", "abcd");
  writeFile(folder / "empty", "");
  EXPECT_EQ(refusalOf(folder / "none", 4), (folder / "none") + ": cannot be read; name a text with --text");
  EXPECT_EQ(refusalOf(folder.path(), 4), folder.path() + ": is a folder; name a text with --text");
  EXPECT_EQ(refusalOf(folder / "empty", 4), (folder / "empty") + ": is empty; name a text with --text");
  EXPECT_EQ(refusalOf(folder / "text", 4),
            (folder / "text") + ": has 4 bytes, and one window takes 5; name a longer text with --text");
  EXPECT_EQ(refusalOf(folder / "text", 3), "was read");
}

}  // namespace
}  // namespace example

// The models and data sets of examples/data_parallel.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "examples/data_parallel/causal_transformer.h"
#include "examples/data_parallel/digit_cnn.h"
#include "examples/data_parallel/digit_images.h"
#include "examples/data_parallel/text_windows.h"
#include "tests/examples/temp_folder.h"

namespace data_parallel {
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
  hybrid::TempFolder folder;
  hybrid::writeFile(folder / "text", "abcdef\xff");
  TextWindows text(folder / "text", 4);
  ASSERT_EQ(text.size(), 3u);
  const auto batch = text.get_batch(std::vector<size_t>{2, 0});
  EXPECT_TRUE(at::equal(batch.data, at::tensor({'c', 'd', 'e', 'f', 'a', 'b', 'c', 'd'}, at::kLong).view({2, 4})));
  EXPECT_TRUE(at::equal(batch.target, at::tensor({100, 101, 102, 255, 98, 99, 100, 101}, at::kLong).view({2, 4})));
}

std::string refusal(const std::string& path, int64_t length) {
  try {
    TextWindows(path, length);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "was read";
}

TEST(TextWindows, RefuseAFileThatIsMissingOrShort) {
  hybrid::TempFolder folder;
  hybrid::writeFile(folder / "text", "abcd");
  EXPECT_EQ(refusal(folder / "none", 4), (folder / "none") + ": cannot be read or is empty; name a text with --text");
  EXPECT_EQ(refusal(folder.path(), 4), folder.path() + ": cannot be read or is empty; name a text with --text");
  EXPECT_EQ(refusal(folder / "text", 4),
            (folder / "text") + ": has 4 bytes, and one window takes 5; name a longer text with --text");
  EXPECT_EQ(refusal(folder / "text", 3), "was read");
}

TEST(DigitImages, AreThoseOfTheFile) {
  DigitImages last(digits::defaultPath(), 1437), all(digits::defaultPath());
  EXPECT_EQ(all.size(), 1797u);
  EXPECT_EQ(last.size(), 360u);
  EXPECT_EQ((all.all().data * 16).to(at::kLong).sum().item<int64_t>(), 561718) << "the sum of all levels of the file";
  const auto batch = last.get_batch(std::vector<size_t>{0, 359}), same = all.get_batch(std::vector<size_t>{1437, 1796});
  EXPECT_TRUE(at::equal(batch.data, same.data));
  EXPECT_TRUE(at::equal(batch.target, same.target));
  EXPECT_EQ(DigitCnn().forward(batch.data).sizes(), (std::vector<int64_t>{2, 10}));
}

}  // namespace
}  // namespace data_parallel

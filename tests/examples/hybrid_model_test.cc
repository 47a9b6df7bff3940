// The digits and the model of hybrid_digits: what is read, what is refused, what one process learns.

#include "examples/hybrid_digits/hybrid_model.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <treadle/checkpoint.h>

#include <stdexcept>
#include <vector>

#include "tests/examples/temp_folder.h"
#include "tests/support/places.h"

namespace hybrid {
namespace {

using example::TempFolder, example::readFile, example::writeFile;

const std::string kPath = treadle::test::sourcePath("examples/data/digits.csv");

TEST(Digits, AreSplitBySeedAndComplete) {
  Digits digits = loadDigits(kPath, 0);
  EXPECT_EQ(digits.train.indices.sizes(), (std::vector<int64_t>{1437, 64}));
  EXPECT_EQ(digits.test.indices.sizes(), (std::vector<int64_t>{360, 64}));
  at::Tensor labels = at::cat({digits.train.labels, digits.test.labels});
  // The counts that the data set's documentation gives for 0 to 9.
  at::Tensor counts = at::tensor({178, 182, 177, 183, 181, 182, 181, 179, 174, 180}, at::kLong);
  EXPECT_TRUE(at::equal(at::bincount(labels), counts));
  at::Tensor indices = at::cat({digits.train.indices, digits.test.indices});
  at::Tensor levels = indices - at::arange(kPixels) * kLevels;
  EXPECT_EQ(levels.min().item<int64_t>(), 0);
  EXPECT_EQ(levels.max().item<int64_t>(), 16);
  EXPECT_EQ(levels.sum().item<int64_t>(), 561718) << "the sum of all levels of the file";
}

TEST(Digits, ASeedAlwaysMeansTheSameSplit) {
  Digits first = loadDigits(kPath, 3), again = loadDigits(kPath, 3), other = loadDigits(kPath, 4);
  EXPECT_TRUE(at::equal(first.test.indices, again.test.indices));
  EXPECT_FALSE(at::equal(first.test.labels, other.test.labels));
  // The C++ standard fixes the generator, so these hold on every machine.
  at::Tensor labels = loadDigits(kPath, 0).train.labels.narrow(0, 0, 8);
  EXPECT_TRUE(at::equal(labels, at::tensor({6, 0, 7, 1, 2, 5, 3, 1}, at::kLong))) << labels;
}

TEST(Digits, TheTrainersSharesAreDisjointAndCoverAll) {
  Digits digits = loadDigits(kPath, 0);
  Samples first = shareOf(digits.train, 0, 2), second = shareOf(digits.train, 1, 2);
  EXPECT_EQ(first.size(), 719);
  EXPECT_EQ(second.size(), 718);
  EXPECT_TRUE(at::equal(first.labels.select(0, 5), digits.train.labels.select(0, 10)));
  EXPECT_TRUE(at::equal(second.indices.select(0, 5), digits.train.indices.select(0, 11)));
  EXPECT_EQ(stepsPerEpoch(1437, 2, 32), 22);
  EXPECT_EQ(stepsPerEpoch(1437, 2, 718), 1);
  Samples batch = batchOf(second, 21, 32);
  EXPECT_EQ(batch.size(), 32);
  EXPECT_TRUE(at::equal(batch.labels.select(0, 31), second.labels.select(0, 703)));
}

std::string refusal(const std::string& path) {
  try {
    loadDigits(path, 0);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "was read";
}

// `text` with the first `from` behind the names' line replaced.
std::string edited(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from, text.find('\n')), from.size(), to);
}

TEST(Digits, AWrongFileIsRefusedWithPathAndLine) {
  TempFolder folder;
  const std::string good = readFile(kPath), path = folder / "digits.csv";
  const std::string names = good.substr(0, good.find('\n') + 1);
  const std::vector<std::pair<std::string, std::string>> wrong = {
      {"", ":1: the file is cut short in this line"},
      {good.substr(names.size()), ":1: these are not the column names of the file of digits"},
      {good.substr(0, good.size() / 2), ": the file is cut short in this line"},
      {good.substr(0, good.size() - 1), ":1798: the file is cut short in this line"},
      {good.substr(0, good.rfind('\n', good.size() - 2) + 1), ":1797: the file ends after 1796 digits instead of 1797"},
      {names, ":1: the file ends after 0 digits instead of 1797"},
      {good + good.substr(good.rfind('\n', good.size() - 2) + 1),
       ":1799: the file ends after 1798 digits instead of 1797"},
      {edited(good, "\n0,0,5,", "\n0,0,17,"), ":2: the level of column 3 is 17 and must be 0 to 16"},
      {edited(good, "\n0,0,5,", "\n0,0,-1,"), ":2: the level of column 3 is -1 and must be 0 to 16"},
      {edited(good, "\n0,0,5,", "\n0,0,5x,"), ":2: column 3 is not a whole number"},
      {edited(good, "\n0,0,5,", "\n0,0,,"), ":2: column 3 is not a whole number"},
      {edited(good, "\n0,0,5,", "\n0,0,99999999999999999999,"), ":2: column 3 is not a whole number"},
      {edited(good, "\n0,0,5,", "\n0,5,"), ":2: the line has 64 numbers instead of 65"},
      {edited(good, "\n0,0,5,", "\n0,0,0,5,"), ":2: the line has more than 65 numbers"},
      {edited(good, ",0\n", ",10\n"), ":2: the label is 10 and must be 0 to 9"},
      {edited(good, "\n", "\n\n"), ":2: column 1 is not a whole number"},
  };
  for (const auto& [text, reason] : wrong) {
    writeFile(path, text);
    std::string told = refusal(path);
    EXPECT_EQ(told.find(path + ":"), 0u) << told;
    EXPECT_NE(told.find(reason), std::string::npos) << told << "\ninstead of " << reason;
  }
}

TEST(Digits, AMissingOrStrangeFileIsRefused) {
  TempFolder folder;
  EXPECT_EQ(refusal(folder / "none"), (folder / "none") + ": there is no such file; name the digits with --data");
  EXPECT_EQ(refusal(folder.path()), folder.path() + ": this is not a regular file");
  EXPECT_EQ(refusal("/dev/zero"), "/dev/zero: this is not a regular file");
  writeFile(folder / "large", std::string(5 << 20, '0'));
  EXPECT_NE(refusal(folder / "large").find("is too large"), std::string::npos);
}

TEST(HybridModel, BeginsTheSameForTheSameSeed) {
  EXPECT_TRUE(at::equal(makeEmbeddingBag(1088, 16, 5)->weight, makeEmbeddingBag(1088, 16, 5)->weight));
  EXPECT_FALSE(at::equal(makeLinear(5)->weight, makeLinear(6)->weight));
  at::Tensor weight = makeLinear(5)->weight.detach();
  EXPECT_TRUE(at::allclose(weight.mm(weight.t()), 4 * at::eye(10), 1e-5, 1e-5)) << "orthogonal rows of length 2";
}

TEST(HybridModel, AccuracyCountsTheLargestLogit) {
  at::Tensor logits = at::tensor({1.0, 2.0, 5.0, -1.0, 0.0, 0.5}).reshape({3, 2});
  EXPECT_DOUBLE_EQ(accuracyOf(logits, at::tensor({1, 0, 0}, at::kLong)), 2.0 / 3);
}

TEST(HybridModel, OneProcessLearnsTheDigits) {
  at::set_num_threads(1);
  Digits digits = loadDigits(kPath, 0);
  std::vector<EpochMetrics> epochs;
  int64_t steps = 0;
  TrainObserver observer;
  observer.onStep = [&](int64_t, int64_t, double) { ++steps; };
  observer.onEpoch = [&](const EpochMetrics& epoch) { epochs.push_back(epoch); };
  SingleResult result = trainSingle(digits, TrainOptions{}, observer);
  EXPECT_GE(result.testAccuracy, 0.93);
  ASSERT_EQ(epochs.size(), 10u);
  EXPECT_EQ(steps, 10 * 44);
  EXPECT_LT(epochs.back().loss, epochs.front().loss / 4);
  EXPECT_EQ(epochs.back().accuracy, result.testAccuracy);
  SingleResult again = trainSingle(digits, TrainOptions{});
  EXPECT_TRUE(at::equal(again.linear->weight, result.linear->weight)) << "training is a function of its seed";
}

TEST(HybridModel, IsSavedUnderItsNames) {
  TempFolder folder;
  torch::nn::EmbeddingBag bag = makeEmbeddingBag(kBagRows, kBagWidth, 0);
  torch::nn::Linear linear = makeLinear(0);
  saveModel(folder / "model.safetensors", bag->weight, linear);
  auto tensors = treadle::loadSafetensors(folder / "model.safetensors");
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_TRUE(at::equal(tensors.at("embedding.weight"), bag->weight));
  EXPECT_TRUE(at::equal(tensors.at("linear.weight"), linear->weight));
  EXPECT_TRUE(at::equal(tensors.at("linear.bias"), linear->bias));
}

}  // namespace
}  // namespace hybrid

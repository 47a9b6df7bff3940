// The model and the data set of the digits in examples/data_parallel.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "examples/data_parallel/digit_cnn.h"
#include "examples/data_parallel/digit_images.h"

namespace data_parallel {
namespace {

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

// Known models have the parameters that their authors and torch count.

#include "treadle/cli/known_models.h"

#include <numeric>

#include "gtest/gtest.h"

namespace treadle::cli::known_models_test {
namespace {

void expectParameters(const char* model, size_t tensors, uint64_t elements) {
  SCOPED_TRACE(model);
  const Result<std::vector<uint64_t>> bytes = parametersOf(model);
  ASSERT_TRUE(bytes.ok()) << bytes.status().message();
  EXPECT_EQ(tensors, bytes->size());
  EXPECT_EQ(4 * elements, std::accumulate(bytes->begin(), bytes->end(), uint64_t{0}));
}

TEST(KnownModels, haveAsManyParametersAsTheirAuthorsCount) {
  expectParameters("resnet50", 161, 25'557'032);
  expectParameters("vgg16", 32, 138'357'544);
  expectParameters("bert-large", 391, 335'141'888);
  expectParameters("gpt2", 148, 124'439'808);
  // torch.nn.Transformer() has 44,140,544.
  expectParameters("transformer", 185, 44'140'544 + 37'000 * 512);
}

TEST(KnownModels, areListedWhereANameIsUnknown) {
  EXPECT_EQ("there is no model 'alexnet'; there are resnet50, vgg16, bert-large, gpt2, transformer",
            parametersOf("alexnet").status().message());
}

}  // namespace
}  // namespace treadle::cli::known_models_test

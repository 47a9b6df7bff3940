#include "treadle/cli/known_models.h"

#include <array>
#include <initializer_list>
#include <utility>

namespace treadle::cli {
namespace {

// Collects the sizes of a model's parameters, module by module, as torch lists them.
class Parameters {
 public:
  void tensor(std::initializer_list<uint64_t> shape) {
    uint64_t bytes = sizeof(float);
    for (uint64_t size : shape) bytes *= size;
    bytes_.push_back(bytes);
  }
  void linear(uint64_t in, uint64_t out) {
    tensor({out, in});
    tensor({out});
  }
  // Weight and bias of a batch or layer normalisation.
  void norm(uint64_t size) {
    tensor({size});
    tensor({size});
  }
  void convolutionAndNorm(uint64_t in, uint64_t out, uint64_t kernel) {
    tensor({out, in, kernel, kernel});
    norm(out);
  }
  std::vector<uint64_t> take() { return std::move(bytes_); }

 private:
  std::vector<uint64_t> bytes_;
};

// K. He et al., "Deep Residual Learning for Image Recognition", 2015, table 1.
std::vector<uint64_t> resnet50() {
  Parameters all;
  all.convolutionAndNorm(3, 64, 7);
  uint64_t in = 64;
  for (auto [blocks, width] : {std::pair(3, 64), {4, 128}, {6, 256}, {3, 512}}) {
    const auto inner = static_cast<uint64_t>(width), out = 4 * inner;
    for (int block = 0; block < blocks; ++block) {
      all.convolutionAndNorm(in, inner, 1);
      all.convolutionAndNorm(inner, inner, 3);
      all.convolutionAndNorm(inner, out, 1);
      if (block == 0) all.convolutionAndNorm(in, out, 1);
      in = out;
    }
  }
  all.linear(in, 1000);
  return all.take();
}

// K. Simonyan and A. Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", 2014, model D.
std::vector<uint64_t> vgg16() {
  Parameters all;
  uint64_t in = 3;
  for (uint64_t out : {64, 64, 128, 128, 256, 256, 256, 512, 512, 512, 512, 512, 512}) {
    all.tensor({out, in, 3, 3});
    all.tensor({out});
    in = out;
  }
  all.linear(512 * 7 * 7, 4096);
  all.linear(4096, 4096);
  all.linear(4096, 1000);
  return all.take();
}

// J. Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2018: BERT-large, uncased, with the
// pooler.
std::vector<uint64_t> bertLarge() {
  constexpr uint64_t kWidth = 1024;
  Parameters all;
  for (uint64_t rows : {30522, 512, 2}) all.tensor({rows, kWidth});  // words, positions, segments
  all.norm(kWidth);
  for (int layer = 0; layer < 24; ++layer) {
    for (int part = 0; part < 4; ++part) all.linear(kWidth, kWidth);  // query, key, value, output
    all.norm(kWidth);
    all.linear(kWidth, 4 * kWidth);
    all.linear(4 * kWidth, kWidth);
    all.norm(kWidth);
  }
  all.linear(kWidth, kWidth);
  return all.take();
}

// A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019: the smallest, whose output layer is
// the word embedding.
std::vector<uint64_t> gpt2() {
  constexpr uint64_t kWidth = 768;
  Parameters all;
  all.tensor({50257, kWidth});
  all.tensor({1024, kWidth});
  for (int layer = 0; layer < 12; ++layer) {
    all.norm(kWidth);
    all.linear(kWidth, 3 * kWidth);
    all.linear(kWidth, kWidth);
    all.norm(kWidth);
    all.linear(kWidth, 4 * kWidth);
    all.linear(4 * kWidth, kWidth);
  }
  all.norm(kWidth);
  return all.take();
}

void attention(Parameters* all, uint64_t width) {
  all->linear(width, 3 * width);
  all->linear(width, width);
}

// A. Vaswani et al., "Attention Is All You Need", 2017: the base model with one embedding of 37,000 words, as
// torch.nn.Transformer has it.
std::vector<uint64_t> transformer() {
  constexpr uint64_t kWidth = 512, kInner = 2048;
  constexpr int kLayers = 6;
  Parameters all;
  all.tensor({37'000, kWidth});
  for (int attentions : {1, 2}) {  // encoder, decoder
    for (int layer = 0; layer < kLayers; ++layer) {
      for (int one = 0; one < attentions; ++one) attention(&all, kWidth);
      all.linear(kWidth, kInner);
      all.linear(kInner, kWidth);
      for (int one = 0; one <= attentions; ++one) all.norm(kWidth);
    }
    all.norm(kWidth);
  }
  return all.take();
}

struct KnownModel {
  const char* name;
  std::vector<uint64_t> (*parameters)();
};

constexpr std::array kModels = {KnownModel{"resnet50", resnet50}, KnownModel{"vgg16", vgg16},
                                KnownModel{"bert-large", bertLarge}, KnownModel{"gpt2", gpt2},
                                KnownModel{"transformer", transformer}};

}  // namespace

Result<std::vector<uint64_t>> parametersOf(const std::string& model) {
  std::string names;
  for (const KnownModel& one : kModels) {
    if (model == one.name) return one.parameters();
    names += (names.empty() ? "" : ", ") + std::string(one.name);
  }
  return invalidArgument("there is no model '" + model + "'; there are " + names);
}

}  // namespace treadle::cli

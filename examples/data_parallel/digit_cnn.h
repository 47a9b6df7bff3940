#pragma once
// A small convolutional network for digits of 8 x 8 pixels: two convolutions, a maximum over 2 x 2 pixels, two linear
// layers. One thread.

#include <torch/nn/module.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>

namespace data_parallel {

class DigitCnn : public torch::nn::Module {
 public:
  DigitCnn();
  // Images, float [N, 1, 8, 8]. Returns logits [N, 10].
  at::Tensor forward(const at::Tensor& images);

 private:
  torch::nn::Conv2d edges_, shapes_;
  torch::nn::Linear hidden_, logits_;
};

}  // namespace data_parallel

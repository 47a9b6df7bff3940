// Trains a convolutional network on handwritten digits, with a replica of it on each worker: see README.md.

#include <ATen/ATen.h>
#include <torch/data/dataloader.h>
#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <treadle/ddp.h>

#include <iostream>

#include "examples/common/train_options.h"
#include "examples/data_parallel/digit_cnn.h"
#include "examples/data_parallel/digit_images.h"
#include "examples/data_parallel/job.h"
#include "examples/data_parallel/loss_report.h"

namespace {

using namespace data_parallel;
using Model = treadle::DistributedDataParallel<DigitCnn>;

constexpr int64_t kTrainDigits = 1437;  // of 1,797; the rest is for the test

struct Options {
  example::TrainOptions training{.steps = 110, .batch = 64, .learningRate = 0.05};
  std::string data = digits::defaultPath();
};

// Share of the test digits that the model knows, 0 to 1. One rank can compute it alone: forward sends nothing.
double testAccuracy(Model& model, const std::string& path) {
  at::NoGradGuard noGradients;
  const auto test = DigitImages(path, kTrainDigits).all();
  return model.forward(test.data).argmax(1).eq(test.target).to(at::kDouble).mean().item<double>();
}

// Whether the loss fell.
bool train(const Options& options, const treadle::ProcessGroup& group) {
  at::manual_seed(options.training.seed);
  Model model(std::make_shared<DigitCnn>(), group);  // equal to rank 0's from here on, whatever the seeds of the others
  torch::optim::SGD optimizer(model->parameters(),
                              torch::optim::SGDOptions(options.training.learningRate).momentum(0.9));

  DigitImages images(options.data, 0, kTrainDigits);
  // Other digits for each rank, in a new order in each epoch.
  treadle::DistributedSampler sampler(images.size().value(), group, {.seed = options.training.seed});
  auto loader = torch::data::make_data_loader(images, sampler, torch::data::DataLoaderOptions(options.training.batch));

  LossReport report("data_parallel_digits", group, options.training.steps);
  for (int64_t step = 0; step < options.training.steps;)
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      at::Tensor loss = torch::nn::functional::cross_entropy(model.forward(batch.data), batch.target);
      loss.backward();  // returns with the averages over all ranks
      optimizer.step();
      report.step(loss);
      if (++step == options.training.steps) break;
    }
  if (group.rank() == 0) std::cout << "test accuracy " << testAccuracy(model, options.data) << std::endl;
  return report.finish();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Trains a convolutional network on handwritten digits, a replica on each worker:\n"
      "    treadle run -n 2 -- data_parallel_digits [options]",
      "data_parallel_digits");
  Options options;
  example::addOptions(app, options.training);
  app.add_option("--data", options.data, "the file of digits")->capture_default_str();
  return runJob(app, argc, argv, [&](const treadle::ProcessGroup& group) { return train(options, group); });
}

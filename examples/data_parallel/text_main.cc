// Trains a transformer to guess the next character of a text, with a replica of it on each worker: see README.md.

#include <ATen/ATen.h>
#include <torch/data/dataloader.h>
#include <torch/optim/adamw.h>
#include <treadle/ddp.h>

#include "examples/common/text_windows.h"
#include "examples/common/train_options.h"
#include "examples/common/transformer_options.h"
#include "examples/data_parallel/job.h"
#include "examples/data_parallel/loss_report.h"

namespace {

using namespace data_parallel;
using Model = treadle::DistributedDataParallel<example::CausalTransformer>;

struct Options {
  example::TrainOptions training{.steps = 100, .batch = 16, .learningRate = 5e-4};
  example::TransformerOptions model;
  std::string text = example::kDefaultText;
};

// Whether the loss fell.
bool train(const Options& options, const treadle::ProcessGroup& group) {
  at::manual_seed(options.training.seed);
  // Equal to rank 0's from here on, whatever the seeds of the others.
  Model model(std::make_shared<example::CausalTransformer>(options.model), group);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions(options.training.learningRate));

  example::TextWindows text(options.text, options.model.length);
  // Other windows for each rank, in a new order in each epoch.
  treadle::DistributedSampler sampler(text.size().value(), group, {.seed = options.training.seed});
  auto loader = torch::data::make_data_loader(text, sampler, torch::data::DataLoaderOptions(options.training.batch));

  LossReport report("data_parallel_text", group, options.training.steps);
  for (int64_t step = 0; step < options.training.steps;)
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      at::Tensor loss = example::nextTokenLoss(model.forward(batch.data), batch.target);
      loss.backward();  // returns with the averages over all ranks
      optimizer.step();
      report.step(loss);
      if (++step == options.training.steps) break;
    }
  return report.finish();
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Trains a character transformer on a text, a replica on each worker:\n"
      "    treadle run -n 2 -- data_parallel_text [options]",
      "data_parallel_text");
  Options options;
  example::addOptions(app, options.training);
  app.add_option("--text", options.text, "file to learn from")->capture_default_str();
  example::addOptions(app, options.model);
  return runJob(app, argc, argv, [&](const treadle::ProcessGroup& group) { return train(options, group); });
}

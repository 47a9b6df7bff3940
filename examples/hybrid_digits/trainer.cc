#include "examples/hybrid_digits/trainer.h"

#include <torch/nn/functional/loss.h>
#include <torch/optim/sgd.h>
#include <treadle/optim.h>

#include "examples/common/stopwatch.h"

namespace hybrid {
namespace {

using Bag = treadle::RemoteModule<torch::nn::EmbeddingBag>;
using Linear = treadle::DistributedDataParallel<torch::nn::Linear>;

constexpr double kReportSeconds = 0.1;  // between two reports of steps

struct Trainer {
  treadle::Worker& worker;
  const Bag& bag;
  const treadle::RRef<Board>& board;
  const TrainTask& task;
  Digits digits;
  Samples share;
  Linear linear;
  treadle::DistributedOptimizer optimizer;

  double trainStep(const Samples& batch);
  EpochMetrics trainEpoch(int64_t epoch, double& stepSeconds);
  double testAccuracy();
};

double Trainer::trainStep(const Samples& batch) {
  treadle::AutogradContext context(worker);
  at::Tensor logits = linear.forward(bag.forward(batch.indices));
  at::Tensor loss = torch::nn::functional::cross_entropy(logits, batch.labels);
  context.backward({loss});
  optimizer.step(context);
  return loss.item<double>();
}

EpochMetrics Trainer::trainEpoch(int64_t epoch, double& stepSeconds) {
  EpochMetrics metrics{.epoch = epoch, .trainer = trainerName(task.trainer)};
  int64_t steps = stepsPerEpoch(digits.train.size(), kTrainers, task.options.batchSize);
  example::Stopwatch watch;
  double reported = 0;
  for (int64_t step = 0; step < steps; ++step) {
    double loss = trainStep(batchOf(share, step, task.options.batchSize));
    metrics.loss += loss / static_cast<double>(steps);
    if (task.trainer != 0 || watch.seconds() - reported < kReportSeconds) continue;
    reported = watch.seconds();
    board.async<&Board::step>(epoch, step + 1, loss);
  }
  double seconds = watch.seconds();
  stepSeconds += seconds;
  metrics.stepsPerS = static_cast<double>(steps) / seconds;
  metrics.accuracy = testAccuracy();
  return metrics;
}

double Trainer::testAccuracy() {
  torch::NoGradGuard noGradients;
  return accuracyOf(linear.forward(bag.forward(digits.test.indices)), digits.test.labels);
}

Trainer makeTrainer(treadle::Worker& worker, const Bag& bag, const treadle::RRef<Board>& board, const TrainTask& task) {
  Digits digits = loadDigits(task.dataPath, static_cast<uint64_t>(task.options.seed));
  Samples share = shareOf(digits.train, task.trainer, kTrainers);
  torch::nn::Linear linear = makeLinear(task.options.seed);
  auto group = treadle::ProcessGroup::make(worker, {trainerName(0), trainerName(1)}, {.timeout = treadle::kNoTimeout});
  std::vector<treadle::RRef<at::Tensor>> parameters = bag.remoteParameters();
  for (auto& own : treadle::parameterRefs(worker, *linear)) parameters.push_back(std::move(own));
  auto optimizer = treadle::DistributedOptimizer::make<torch::optim::SGD>(
      worker, parameters, torch::optim::SGDOptions(task.options.learningRate));
  return {worker, bag, board, task, digits, share, Linear(linear, group), std::move(optimizer)};
}

}  // namespace

std::string trainerName(int64_t trainer) { return "trainer" + std::to_string(trainer); }

void Board::step(int64_t epoch, int64_t step, double loss) {
  std::lock_guard lock(mutex_);
  progress_.step(epoch, step, loss);
}

void Board::epochDone(const EpochMetrics& metrics) {
  std::lock_guard lock(mutex_);
  metrics_.write(jsonOf(metrics));
  if (metrics.trainer == trainerName(0)) progress_.epochDone(metrics);
}

TrainResult train(treadle::CallContext& call, const Bag& bag, const treadle::RRef<Board>& board,
                  const TrainTask& task) {
  Trainer trainer = makeTrainer(call.worker(), bag, board, task);
  example::Stopwatch watch;
  double stepSeconds = 0;
  for (int64_t epoch = 1; epoch <= task.options.epochs; ++epoch) {
    EpochMetrics metrics = trainer.trainEpoch(epoch, stepSeconds);
    metrics.seconds = watch.seconds();
    board.async<&Board::epochDone>(metrics).wait();
  }
  auto steps = static_cast<double>(task.options.epochs *
                                   stepsPerEpoch(trainer.digits.train.size(), kTrainers, task.options.batchSize));
  return {trainer.linear->weight, trainer.linear->bias, steps / stepSeconds};
}

}  // namespace hybrid

#pragma once
// What a trainer does when the master calls it, and what they tell each other. Values that travel between the workers
// of hybrid_digits are here.

#include <treadle/ddp.h>
#include <treadle/nn.h>

#include "examples/common/metrics_file.h"
#include "examples/hybrid_digits/hybrid_model.h"
#include "examples/hybrid_digits/progress.h"

namespace hybrid {

TREADLE_FIELDS(EpochMetrics, epoch, trainer, loss, accuracy, stepsPerS, seconds)
TREADLE_FIELDS(TrainOptions, epochs, batchSize, learningRate, seed)

// Lives at the master, which shows what the trainers report. Its functions are called one at a time.
class Board {
 public:
  Board(example::MetricsFile& metrics, Progress& progress) : metrics_(metrics), progress_(progress) {}
  void step(int64_t epoch, int64_t step, double loss);
  void epochDone(const EpochMetrics& metrics);

 private:
  std::mutex mutex_;
  example::MetricsFile& metrics_;
  Progress& progress_;
};

struct TrainResult {
  at::Tensor weight, bias;  // of the linear layer
  double stepsPerS = 0;
};
TREADLE_FIELDS(TrainResult, weight, bias, stepsPerS)

struct TrainTask {
  int64_t trainer = 0;  // 0 or 1
  std::string dataPath;
  TrainOptions options;
};
TREADLE_FIELDS(TrainTask, trainer, dataPath, options)

inline constexpr int64_t kTrainers = 2;
std::string trainerName(int64_t trainer);

// Trains on this worker's share of the data.
TrainResult train(treadle::CallContext& call, const treadle::RemoteModule<torch::nn::EmbeddingBag>& bag,
                  const treadle::RRef<Board>& board, const TrainTask& task);

}  // namespace hybrid

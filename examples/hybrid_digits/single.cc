#include "examples/hybrid_digits/single.h"

#include <cstdio>
#include <iostream>

#include "examples/common/metrics_file.h"
#include "examples/common/plot_command.h"
#include "examples/hybrid_digits/progress.h"

namespace hybrid {
namespace {

constexpr const char* kPlotTitle = "hybrid_digits: an embedding bag and a linear layer on 8x8 handwritten digits";

}  // namespace

void runSingle(const Options& options) {
  Digits digits = loadDigits(options.dataPath, static_cast<uint64_t>(options.training.seed));
  example::RunFolder folder = makeRunFolder(options);
  std::cout << "run folder " << folder.path() << std::endl;
  example::MetricsFile metrics(folder.metricsPath());
  SingleResult result;
  {
    Progress progress(std::cout, Progress::styleOfStandardOutput(), options.training.epochs,
                      stepsPerEpoch(digits.train.size(), 1, options.training.batchSize));
    TrainObserver observer;
    observer.onStep = [&](int64_t epoch, int64_t step, double loss) { progress.step(epoch, step, loss); };
    observer.onEpoch = [&](const EpochMetrics& epoch) {
      metrics.write(jsonOf(epoch));
      progress.epochDone(epoch);
    };
    result = trainSingle(digits, options.training, observer);
  }
  saveModel(folder.file(kModelFile), result.embedding->weight, result.linear);
  finishRun(folder);
  std::printf("hybrid_digits: single process test accuracy %.3f, %.0f steps/s, %.1f s\n", result.testAccuracy,
              result.stepsPerS, result.seconds);
}

example::RunFolder makeRunFolder(const Options& options) {
  return example::RunFolder::make("hybrid_digits", options.runFolder);
}

void finishRun(const example::RunFolder& folder) {
  std::cout << "metrics.jsonl and " << kModelFile << " are in " << folder.path() << "; this draws the metrics:\n"
            << example::plotCommand(folder, kPlotTitle) << std::endl;
}

}  // namespace hybrid

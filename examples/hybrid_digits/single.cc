#include "examples/hybrid_digits/single.h"

#include <cstdio>
#include <cstdlib>
#include <iomanip>
#include <iostream>

#include "examples/hybrid_digits/progress.h"

namespace hybrid {

void runSingle(const Options& options) {
  Digits digits = loadDigits(options.dataPath, static_cast<uint64_t>(options.training.seed));
  RunFolder folder = RunFolder::make(options.runFolder);
  std::cout << "run folder " << folder.path() << std::endl;
  MetricsWriter metrics(folder.metricsPath());
  SingleResult result;
  {
    Progress progress(std::cout, Progress::styleOfStandardOutput(), options.training.epochs,
                      stepsPerEpoch(digits.train.size(), 1, options.training.batchSize));
    TrainObserver observer;
    observer.onStep = [&](int64_t epoch, int64_t step, double loss) { progress.step(epoch, step, loss); };
    observer.onEpoch = [&](const EpochMetrics& epoch) {
      metrics.write(epoch);
      progress.epochDone(epoch);
    };
    result = trainSingle(digits, options.training, observer);
  }
  saveModel(folder.modelPath(), result.embedding->weight, result.linear);
  finishRun(folder);
  std::printf("hybrid_digits: single process test accuracy %.3f, %.0f steps/s, %.1f s\n", result.testAccuracy,
              result.stepsPerS, result.seconds);
}

// TREADLE_PYTHON names a Python that has what the project's scripts need.
void finishRun(const RunFolder& folder) {
  const char* python = std::getenv("TREADLE_PYTHON");
  std::cout << "metrics.jsonl and model.safetensors are in " << folder.path() << "; this draws the metrics:\n"
            << std::quoted(python != nullptr ? python : "python3") << ' ' << std::quoted(HYBRID_DIGITS_PLOT_SCRIPT)
            << ' ' << std::quoted(folder.metricsPath()) << ' ' << std::quoted(folder.plotPath()) << std::endl;
}

}  // namespace hybrid

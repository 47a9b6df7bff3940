#include "examples/char_gpt/agreement.h"

#include <cstdio>
#include <functional>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string_view>

namespace char_gpt {
namespace {

constexpr double kLimit = 1e-3, kLimitFloat64 = 1e-10;

std::string textOf(const Corpus& corpus) {
  return corpus.alphabet.decode(corpus.train) + corpus.alphabet.decode(corpus.validation);
}

}  // namespace

std::string describe(const Options& options, const Corpus& corpus) {
  const example::TrainOptions& training = options.training;
  const example::TransformerOptions& model = options.model;
  const std::string text = textOf(corpus);
  std::ostringstream out;
  out.precision(std::numeric_limits<double>::max_digits10);
  out << text.size() << " characters with the hash " << std::hash<std::string_view>()(text) << ", --steps "
      << training.steps << " --batch " << training.batch << " --lr " << training.learningRate << " --seed "
      << training.seed << " --layers " << model.layers << " --width " << model.width << " --heads " << model.heads
      << " --length " << model.length << (options.float64 ? " --float64" : "")
      << (options.overlapForward ? " --overlap-forward" : "");
  return out.str();
}

void checkSame(const std::map<std::string, std::string>& trainings) {
  for (const auto& [worker, training] : trainings) {
    const auto& [first, expected] = *trainings.begin();
    if (training == expected) continue;
    throw std::runtime_error(worker + " trains with other texts or options (" + training + ") than " + first + " (" +
                             expected + "); give all workers the same ones");
  }
}

void checkDifference(double difference, bool float64) {
  if (difference <= (float64 ? kLimitFloat64 : kLimit)) return;
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", difference);
  const std::string what = std::string("the validation losses differ by ") + text;
  if (float64)
    throw std::runtime_error(what +
                             ", more than 1e-10: either this training increases even such rounding (use a lower --lr "
                             "or fewer --steps), or the replicas did not train on the batches of one process");
  throw std::runtime_error(what +
                           ", more than 0.001: rounding grows with the learning rate and the steps; if it is the "
                           "reason, the difference is tiny with --float64");
}

}  // namespace char_gpt

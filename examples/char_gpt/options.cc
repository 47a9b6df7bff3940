#include "examples/char_gpt/options.h"

#include <map>

#include "examples/char_gpt/corpus.h"

namespace char_gpt {
namespace {

void makeQuick(Options& options) {
  options.training.steps = 100;
  options.training.batch = 16;
  options.training.learningRate = 1e-2;
  options.model.length = 16;
  options.model.layers = 2;
  options.model.width = 32;
  options.model.heads = 2;
  options.sample = 100;
}

}  // namespace

void addOptions(CLI::App& app, Options& options) {
  // First, because CLI11 applies options in this order: options that the user gives override it.
  app.add_flag_callback("--quick", [&options] { makeQuick(options); }, "a small model, trained for seconds");
  example::addOptions(app, options.training);
  example::addOptions(app, options.model);
  app.add_option("--text", options.texts, std::string("files to learn from [those in ") + kLicences + "]")
      ->type_name("FILE...");
  app.add_option("--sample", options.sample, "characters that the model writes at the end")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{10'000}));
  app.add_option("--run-folder", options.runFolder, "where the metrics go [runs/char_gpt-DATE-TIME]");
  const std::map<std::string, treadle::AverageBy> all = {{"automatic", treadle::AverageBy::kAutomatic},
                                                         {"group", treadle::AverageBy::kGroup},
                                                         {"service", treadle::AverageBy::kService}};
  app.add_option("--average-by", options.averageBy, "what averages gradients: automatic, group or service [automatic]")
      ->transform(CLI::CheckedTransformer(all).description(""));
  app.add_flag("--overlap-forward", options.overlapForward,
               "gradients travel on while the next forward pass runs: faster on a slow network with servers");
  app.add_flag("--float64", options.float64, "weights of 64 bits: slower, and both trainings end closer together");
}

}  // namespace char_gpt

// Trains a small GPT on a text, with a replica of it on each worker, and once more in one process: see README.md.

#include <ATen/Parallel.h>
#include <treadle/ddp.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <optional>

#include "examples/char_gpt/agreement.h"
#include "examples/char_gpt/generate.h"
#include "examples/char_gpt/trainer.h"
#include "examples/common/command_line.h"
#include "examples/common/group_of_all.h"
#include "examples/common/plot_command.h"

namespace {

using namespace char_gpt;
using example::CausalTransformer, example::MetricsFile, example::RunFolder;

struct Trained {
  std::shared_ptr<CausalTransformer> model;
  Result result;
};

std::string workers(int count) { return std::to_string(count) + (count == 1 ? " worker" : " workers"); }

int64_t parametersOf(const CausalTransformer& model) {
  int64_t count = 0;
  for (const at::Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

// Every rank calls it. `metrics`: null on all but one.
Trained trainReplicas(const Options& options, const Corpus& corpus, const treadle::ProcessGroup& group,
                      MetricsFile* metrics) {
  auto model = makeModel(options, corpus);
  Training training{workers(group.size()), options.training.batch, {group}, metrics};
  if (options.overlapForward) training.inBackward = makeOptimizer(*model, options);
  // Makes all replicas equal to rank 0's, and averages the gradients of each backward pass from here on.
  treadle::DistributedDataParallel<CausalTransformer> replica(model, group,
                                                              {.averageBy = options.averageBy,
                                                               .optimizerInBackward = training.inBackward,
                                                               .overlapForward = options.overlapForward});
  model->beforeUse = [&](const torch::nn::Module& part) { replica.awaitAverages(part); };
  const std::shared_ptr<void> atEnd(nullptr, [&](void*) { model->beforeUse = nullptr; });
  const Result result = train(*model, corpus, options, training);
  replica.awaitAverages();
  return {model, result};
}

// The same training in this process, which takes the batches of all ranks.
Result trainAlone(const Options& options, const Corpus& corpus, int ranks, MetricsFile& metrics) {
  std::cout << "now one process trains on the same batches, which is the work of " << workers(ranks) << std::endl;
  return train(*makeModel(options, corpus), corpus, options,
               {"one process", options.training.batch * ranks, {}, &metrics});
}

// Rank 0 has the run folder. If it cannot be made, all workers throw the same, and none trains.
std::optional<RunFolder> makeRunFolder(treadle::Worker& worker, const Options& options) {
  std::optional<RunFolder> folder;
  std::string problem;
  if (worker.self().rank == 0) try {
      folder = RunFolder::make("char_gpt", options.runFolder);
    } catch (const std::exception& error) {
      problem = error.what();
    }
  for (const auto& [name, reported] : worker.allGather(problem))
    if (!reported.empty()) throw std::runtime_error(reported);
  return folder;
}

// Checks on all workers, before there is a run folder: an error leaves nothing. They fail alike, and leave the
// job together, so none reports that another is lost. Rank 0 gets the run folder.
std::optional<RunFolder> prepare(treadle::Worker& worker, const Options& options, const Corpus& corpus) try {
  const auto ranks = static_cast<int64_t>(worker.peers().size());
  checkFits(corpus, options.model.length, options.training.batch * ranks);
  checkSame(worker.allGather(describe(options, corpus)));
  return makeRunFolder(worker, options);
} catch (const treadle::Error&) {
  throw;
} catch (const std::exception&) {
  worker.shutdown();
  throw;
}

void showSample(const Options& options, const Corpus& corpus, CausalTransformer& model) {
  const at::Tensor prompt = corpus.validation.slice(0, 0, options.model.length);
  const at::Tensor sample =
      generate(model, prompt, {.count = options.sample, .length = options.model.length, .seed = options.training.seed});
  std::cout << "the validation text begins with\n"
            << printable(corpus.alphabet.decode(prompt)) << "\nand the model goes on with\n"
            << printable(corpus.alphabet.decode(sample)) << std::endl;
}

// The last line. Throws when the trainings ended too far apart.
void compare(const Options& options, int ranks, const Result& replicas, const Result& alone) {
  const double difference = std::abs(replicas.validationLoss - alone.validationLoss);
  std::printf("char_gpt: validation loss %.5f with %s, %.5f in one process, difference %.1e; %.1f s and %.1f s\n",
              replicas.validationLoss, workers(ranks).c_str(), alone.validationLoss, difference, replicas.seconds,
              alone.seconds);
  std::fflush(stdout);
  checkDifference(difference, options.float64);
}

// On rank 0, when the replicas are trained.
void finish(const Options& options, const Corpus& corpus, int ranks, const Trained& trained, const RunFolder& folder,
            MetricsFile& metrics) {
  const Result alone = trainAlone(options, corpus, ranks, metrics);
  showSample(options, corpus, *trained.model);
  std::cout << "metrics.jsonl is in " << folder.path() << "; this draws the losses:\n"
            << example::plotCommand(folder, "char_gpt: a small GPT on several workers and in one process") << std::endl;
  compare(options, ranks, trained.result, alone);
}

void run(const Options& options) {
  // One thread: each worker usually has one core.
  at::set_num_threads(1);
  // Before the join: each worker reports a text that is missing or too short for any number of workers.
  const Corpus corpus = loadCorpus(options.texts.empty() ? filesOf(kLicences) : options.texts);
  checkFits(corpus, options.model.length, options.training.batch);
  auto worker = treadle::join({});
  const std::optional<RunFolder> folder = prepare(*worker, options, corpus);
  const treadle::ProcessGroup group = example::groupOfAll(*worker);
  if (!folder) {
    trainReplicas(options, corpus, group, nullptr);
    worker->shutdown();
    return;
  }
  MetricsFile metrics(folder->metricsPath());
  std::cout << corpus.train.numel() << " characters for the training, " << corpus.validation.numel()
            << " for the validation, " << corpus.alphabet.size() << " different ones; the model has "
            << parametersOf(*makeModel(options, corpus)) << " parameters" << std::endl;
  const Trained trained = trainReplicas(options, corpus, group, &metrics);
  worker->shutdown();  // the others are done
  finish(options, corpus, group.size(), trained, *folder, metrics);
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app(
      "Trains a small GPT on a text, a replica on each worker, and once more in one process on the same batches:\n"
      "    treadle run -n 2 -- char_gpt [options]",
      "char_gpt");
  Options options;
  char_gpt::addOptions(app, options);
  if (const std::optional<int> exitCode = example::parse(app, argc, argv)) return *exitCode;
  try {
    run(options);
    return 0;
  } catch (const std::exception& error) {
    std::cerr << "char_gpt: " << error.what() << std::endl;
    return 1;
  }
}

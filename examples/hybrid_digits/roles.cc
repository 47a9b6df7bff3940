#include "examples/hybrid_digits/roles.h"

#include <treadle/rpc.h>

#include <cstdio>
#include <iostream>
#include <stdexcept>

#include "examples/common/stopwatch.h"
#include "examples/hybrid_digits/single.h"
#include "examples/hybrid_digits/trainer.h"

namespace hybrid {
namespace {

using namespace std::chrono_literals;
using Bag = treadle::RemoteModule<torch::nn::EmbeddingBag>;

constexpr int kWorkers = 2 + static_cast<int>(kTrainers);

std::string nameOfRank(int rank) {
  if (rank == 0) return "master";
  return rank == 1 ? "ps" : trainerName(rank - 2);
}

// The same on all workers: what one offers, another calls.
treadle::Functions functions() {
  treadle::Functions functions;
  treadle::addModule<&makeEmbeddingBag>(functions, "EmbeddingBag");
  functions.add<&train>("train").add<&Board::step>("Board.step").add<&Board::epochDone>("Board.epochDone");
  return functions;
}

treadle::Launch checkedLaunch() {
  auto launch = treadle::valueOrThrow(treadle::Launch::detect());
  if (launch.worldSize == kWorkers) return launch;
  throw std::runtime_error(
      "this job needs 4 workers (a master, a parameter server and two trainers) and was started "
      "with " +
      std::to_string(launch.worldSize) + "; use `treadle run -n 4 -- hybrid_digits`");
}

struct Trained {
  at::Tensor embedding;
  std::vector<TrainResult> trainers;

  torch::nn::Linear linear() const {
    torch::nn::Linear linear = makeLinear(0);
    torch::NoGradGuard noGradients;
    linear->weight.copy_(trainers.front().weight);
    linear->bias.copy_(trainers.front().bias);
    return linear;
  }
  double stepsPerS() const {
    double sum = 0;
    for (const TrainResult& trainer : trainers) sum += trainer.stepsPerS;
    return sum / static_cast<double>(trainers.size());
  }
};

// Makes the bag on the parameter server, has both trainers train, and fetches what they made.
Trained trainOnAll(treadle::Worker& worker, const Options& options, const example::RunFolder& folder) {
  example::MetricsFile metrics(folder.metricsPath());
  int64_t steps = stepsPerEpoch(kTrainDigits, kTrainers, options.training.batchSize);
  Progress progress(std::cout, Progress::styleOfStandardOutput(), options.training.epochs, steps);
  auto board = worker.makeRRef(std::make_shared<Board>(metrics, progress));
  Bag bag(worker, "ps", kBagRows, kBagWidth, options.training.seed);
  // Training may take days: only the trainers' lives bound it.
  treadle::CallProxy whileTheyLive = worker.with({.timeout = treadle::kNoTimeout});
  std::vector<treadle::Future<TrainResult>> results;
  for (int64_t trainer = 0; trainer < kTrainers; ++trainer) {
    TrainTask task{trainer, options.dataPath, options.training};
    results.push_back(whileTheyLive.async<&train>(trainerName(trainer), bag, board, task));
  }
  Trained trained;
  trained.trainers = treadle::whenAll(results).wait();
  trained.embedding = bag.remoteParameters().front().toHere();
  return trained;
}

double testAccuracy(const Trained& trained, const Samples& test) {
  torch::NoGradGuard noGradients;
  auto bag = torch::nn::EmbeddingBag::from_pretrained(trained.embedding,
                                                      torch::nn::EmbeddingBagFromPretrainedOptions().mode(torch::kSum));
  return accuracyOf(trained.linear()(bag(test.indices)), test.labels);
}

void runMaster(treadle::Worker& worker, const Options& options, const Digits& digits) {
  example::Stopwatch watch;
  example::RunFolder folder = makeRunFolder(options);
  std::cout << "run folder " << folder.path() << std::endl;
  Trained trained = trainOnAll(worker, options, folder);
  worker.shutdown();
  saveModel(folder.file(kModelFile), trained.embedding, trained.linear());
  double accuracy = testAccuracy(trained, digits.test);
  SingleResult single = trainSingle(digits, options.training);
  finishRun(folder);
  std::printf("hybrid_digits: test accuracy %.3f, single process %.3f, %.0f steps/s per trainer, %.1f s\n", accuracy,
              single.testAccuracy, trained.stepsPerS(), watch.seconds());
}

}  // namespace

void runRole(const Options& options) {
  treadle::Launch launch = checkedLaunch();
  // Every process looks at the data before it joins: a bad file ends the job before it has begun.
  Digits digits = loadDigits(options.dataPath, static_cast<uint64_t>(options.training.seed));
  treadle::JoinOptions join{.name = nameOfRank(launch.rank),
                            .functions = functions(),
                            .launch = launch,
                            .joinTimeout = 15s,
                            .heartbeatTimeout = 4s};
  // Nobody gives up on a peer that lives, however slow it is.
  join.rpcTimeout = treadle::kNoTimeout;
  auto worker = treadle::join(std::move(join));
  if (launch.rank == 0) {
    runMaster(*worker, options, digits);
  } else {
    worker->shutdown();  // serves until the whole job is over
  }
}

}  // namespace hybrid

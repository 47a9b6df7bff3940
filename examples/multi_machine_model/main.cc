// A language model in three parts, each on a machine of its own; a fourth worker trains it. What one part makes for the
// next goes from machine to machine by references, never through the worker that trains: see README.md.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>
#include <torch/optim/adam.h>
#include <treadle/nn.h>
#include <treadle/optim.h>

#include <array>
#include <exception>
#include <iostream>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace {

constexpr int kWorkers = 4;
constexpr const char* kNames[kWorkers] = {"trainer", "embedding", "recurrent", "decoder"};  // by rank
constexpr int64_t kLetters = 27, kWidth = 16, kHidden = 32;
constexpr size_t kLength = 25;  // letters in a text
constexpr int kSteps = 200;
constexpr double kWantedLoss = 0.4;

// ---- the three parts. Texts are numbers of letters, [time, batch].

struct Embedding : torch::nn::Module {
  torch::nn::Embedding table = register_module("table", torch::nn::Embedding(kLetters, kWidth));
  at::Tensor forward(const at::Tensor& text) { return table(text.slice(0, 0, -1)); }  // nothing follows the last letter
};

struct Recurrent : torch::nn::Module {
  torch::nn::LSTM lstm = register_module("lstm", torch::nn::LSTM(kWidth, kHidden));
  at::Tensor forward(const at::Tensor& letters) { return std::get<0>(lstm(letters)); }
};

// How far off the guesses of the next letters are, in nats a letter.
struct Decoder : torch::nn::Module {
  torch::nn::Linear linear = register_module("linear", torch::nn::Linear(kHidden, kLetters));
  at::Tensor forward(const at::Tensor& states, const at::Tensor& text) {
    return torch::nn::functional::cross_entropy(linear(states).flatten(0, 1), text.slice(0, 1).flatten());
  }
};

treadle::Functions functions() {
  treadle::Functions functions;
  treadle::addModule<Embedding>(functions, "Embedding");
  treadle::addModule<Recurrent>(functions, "Recurrent");
  treadle::addModule<Decoder>(functions, "Decoder");
  // RemoteModule::forward brings its result to the caller. Called by these names, it can stay where it was made.
  functions.add<&Embedding::forward>("embed").add<&Recurrent::forward>("recur").add<&Decoder::forward>("decode");
  return functions;
}

// ---- the training

// `count` texts of words in random order. Their letters can be guessed by who remembers how the word began; the next
// word cannot.
at::Tensor drawTexts(std::mt19937& random, int64_t count) {
  constexpr std::array kWords = {"treadle ", "loom ", "weft ", "warp ", "shuttle ", "heddle ", "reed ", "yarn "};
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < count; ++i) {
    std::string text;
    while (text.size() < kLength) text += kWords[random() % kWords.size()];
    for (char letter : text.substr(0, kLength)) numbers.push_back(letter == ' ' ? 26 : letter - 'a');
  }
  return at::tensor(numbers).view({count, -1}).t();
}

// Returns the loss on new texts.
double train(treadle::Worker& worker) {
  treadle::RemoteModule<Embedding> embedding(worker, "embedding");
  treadle::RemoteModule<Recurrent> recurrent(worker, "recurrent");
  treadle::RemoteModule<Decoder> decoder(worker, "decoder");

  std::vector<treadle::RRef<at::Tensor>> parameters = embedding.remoteParameters();
  for (auto& parameter : recurrent.remoteParameters()) parameters.push_back(parameter);
  for (auto& parameter : decoder.remoteParameters()) parameters.push_back(parameter);
  auto optimizer =
      treadle::DistributedOptimizer::make<torch::optim::Adam>(worker, parameters, torch::optim::AdamOptions(0.01));

  // Each call returns at once, and its result goes straight to the machine that needs it. Only the loss comes here.
  auto lossOn = [&](const at::Tensor& text) {
    treadle::RRef<at::Tensor> letters = embedding.moduleRef()(text);
    treadle::RRef<at::Tensor> states = recurrent.moduleRef()(letters);
    return decoder.moduleRef()(states, text).toHere();
  };

  std::mt19937 random(0);
  for (int step = 1; step <= kSteps; ++step) {
    treadle::AutogradContext context(worker);
    at::Tensor loss = lossOn(drawTexts(random, 16));
    context.backward({loss});  // over the machines in the other direction
    optimizer.step(context);
    if (step % 40 == 0) std::cout << "step " << step << ": loss " << loss.item<double>() << std::endl;
  }
  return lossOn(drawTexts(random, 256)).item<double>();
}

// Whether the job reached its loss.
bool run() {
  at::set_num_threads(1);  // all workers share one machine as a rule
  at::manual_seed(0);

  treadle::JoinOptions options;
  options.launch = treadle::valueOrThrow(treadle::Launch::detect());
  if (options.launch->worldSize != kWorkers) throw std::runtime_error("this job needs 4 workers: treadle run -n 4");
  const int rank = options.launch->rank;
  options.name = kNames[rank];
  options.functions = functions();
  auto worker = treadle::join(std::move(options));

  double loss = rank == 0 ? train(*worker) : 0;
  worker->shutdown();  // serves the others until all have come here
  if (rank != 0) return true;
  const bool below = loss < kWantedLoss;
  std::cout << "multi_machine_model: loss " << loss << (below ? ", below " : ", not below ") << kWantedLoss
            << std::endl;
  return below;
}

}  // namespace

int main() {
  try {
    return run() ? 0 : 1;
  } catch (const std::exception& error) {
    std::cerr << "multi_machine_model: " << error.what() << std::endl;
    return 1;
  }
}

// Training steps with a ReplicaSet of two replicas in one process, and in turn with them the same steps of libtorch
// alone: one module on the whole batch, with as many threads in its operations as there are replicas.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <cstdio>
#include <stdexcept>

#include "bench/ours/ddp_models.h"
#include "bench/ours/measure.h"
#include "bench/ours/training_options.h"
#include "treadle/ddp.h"

namespace {

constexpr int kReplicas = 2;
// Steps of one kind, and those before them that do not count: after its last operation, a thread of OpenMP looks for
// the next one for some milliseconds, and needs a core for it.
constexpr int kInARow = 10, kBefore = 5;
// Of losses at the end of the first turn: sums are in another order. The difference grows with each step, and where a
// model has learnt its batches by heart it is a part of nearly nothing.
constexpr double kRelativeTolerance = 1e-3;

template <class Case>
class Training {
 public:
  // Prints the times of `steps` steps of each kind, or of a few more: of kInARow at a time.
  void run(const std::string& name, int steps) {
    bench::Series replicas{"", "us", {}}, alone{"libtorch", "us", {}};
    // The order changes, so that neither always comes second.
    for (int turn = 0; turn * kInARow < steps; ++turn) {
      for (const bool isAlone : {turn % 2 == 0, turn % 2 != 0}) {
        std::vector<double>& times = (isAlone ? alone : replicas).values;
        for (int i = 0; i < kBefore + kInARow; ++i) {
          chooseBatch(turn * (kBefore + kInARow) + i);
          const double time = bench::timeOf([&] { isAlone ? stepAlone() : stepOfReplicas(); });
          if (i >= kBefore) times.push_back(time);
        }
      }
      if (turn == 0) checkLosses();
    }
    bench::print("replicas_step_" + name, std::move(replicas));
    bench::print("replicas_step_" + name, std::move(alone));
  }

 private:
  using Model = typename Case::Model;

  void checkLosses() const {
    if (std::abs(loss_ - aloneLoss_) <= kRelativeTolerance * aloneLoss_) return;
    throw std::runtime_error("the replicas' loss is " + std::to_string(loss_) + ", and that of one module " +
                             std::to_string(aloneLoss_));
  }

  void chooseBatch(int step) {
    for (int i = 0; i < kReplicas; ++i) parts_[i] = bench::batchOf(case_, step, i, kReplicas);
    whole_ = {at::cat({parts_[0].data, parts_[1].data}), at::cat({parts_[0].target, parts_[1].target})};
  }

  void stepOfReplicas() {
    optimizer_.zero_grad();
    const std::vector<at::Tensor> losses =
        replicas_.backward([&](Model& replica, int i) { return Case::lossOf(replica, parts_[i]); });
    optimizer_.step();
    loss_ = (losses[0].template item<double>() + losses[1].template item<double>()) / kReplicas;
  }

  void stepAlone() {
    aloneOptimizer_.zero_grad();
    const at::Tensor loss = Case::lossOf(*alone_, whole_);
    loss.backward();
    aloneOptimizer_.step();
    aloneLoss_ = loss.template item<double>();
  }

  Case case_;
  std::shared_ptr<Model> model_ = bench::firstModelOf(case_), alone_ = bench::firstModelOf(case_);
  treadle::ReplicaSet<Model> replicas_{model_, {.replicas = kReplicas}, [this] { return case_.makeModel(); }};
  torch::optim::SGD optimizer_{model_->parameters(), torch::optim::SGDOptions(Case::kLearningRate)};
  torch::optim::SGD aloneOptimizer_{alone_->parameters(), torch::optim::SGDOptions(Case::kLearningRate)};
  std::array<torch::data::Example<>, kReplicas> parts_;
  torch::data::Example<> whole_;
  double loss_ = 0, aloneLoss_ = 0;  // of the last step
};

template <class Case>
void measure(const std::string& name, int repetitions) {
  Training<Case>().run(name, repetitions * Case::kPairs);
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Steps of training with two replicas in one process, beside steps of libtorch alone");
  bench::TrainingOptions training;
  training.addTo(app);
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(kReplicas);
  const auto measureModel = training.model == "cnn" ? measure<bench::CnnCase> : measure<bench::TransformerCase>;
  measureModel(training.model, training.repetitions);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench: %s\n", error.what());
  return 1;
}

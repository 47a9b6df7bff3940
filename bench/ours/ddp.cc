// Training steps with DistributedDataParallel, and in turn with them the same steps without averaging, of a second
// replica that trains on the batches of its rank alone. bench/peers/torch_ddp.py measures the same of PyTorch. Started
// by `treadle run -n 2`; rank 0 prints.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/optim/sgd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <stdexcept>
#include <string>

#include "bench/ours/ddp_models.h"
#include "bench/ours/measure.h"
#include "bench/ours/training_options.h"
#include "treadle/ddp.h"

namespace {

constexpr int kWarmUp = 5;       // pairs
constexpr int kLossesAtEnd = 5;  // steps whose mean loss must be the peer's

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// Returns at the same moment on all ranks, which are processes of one host: what one rank started later, another would
// wait for in the step, and that is not a cost of averaging.
void lineUp(const treadle::ProcessGroup& group) {
  constexpr double kAheadSeconds = 0.001;
  at::Tensor start = at::full({1}, now() + kAheadSeconds, at::kDouble);
  treadle::broadcast(group, start, 0).wait();
  const double moment = start.item<double>();
  while (now() < moment) {}
}

template <class Case>
class Training {
 public:
  Training(treadle::ProcessGroup group, treadle::AverageBy averageBy)
      : group_(std::move(group)),
        alone_(bench::firstModelOf(case_)),
        averaged_(bench::firstModelOf(case_), group_, {.averageBy = averageBy}) {}

  // Timed pairs of steps, as rows of [4, pairs]: microseconds of the step, of the step without averaging, and of an
  // all-reduce of as many bytes as the gradients have, and the loss.
  at::Tensor run(int pairs) {
    at::Tensor figures = at::empty({4, pairs}, at::kDouble);
    for (int pair = -kWarmUp; pair < pairs; ++pair) {
      batch_ = bench::batchOf(case_, pair + kWarmUp, group_.rank(), group_.size());
      double step = 0, compute = 0;
      // The order changes, so that neither always comes second.
      if (pair % 2 == 0) step = timeOfStep(*averaged_, optimizer_);
      compute = timeOfStep(*alone_, aloneOptimizer_);
      if (pair % 2 != 0) step = timeOfStep(*averaged_, optimizer_);
      const double communication = timeOfAllReduce();
      if (pair >= 0) figures.select(1, pair).copy_(at::tensor({step, compute, communication, loss_}, at::kDouble));
    }
    return figures;
  }

 private:
  using Model = typename Case::Model;

  double timeOfStep(Model& model, torch::optim::SGD& optimizer) {
    lineUp(group_);
    at::Tensor loss;
    const double time = bench::timeOf([&] {
      optimizer.zero_grad();
      loss = Case::lossOf(model, batch_);
      loss.backward();
      optimizer.step();
    });
    if (&model == &*averaged_) loss_ = loss.template item<double>();
    return time;
  }

  double timeOfAllReduce() {
    lineUp(group_);
    return bench::timeOf([&] { treadle::allReduce(group_, gradients_, treadle::ReduceOp::kAverage).wait(); });
  }

  at::Tensor likeGradients() const {
    int64_t count = 0;
    for (const at::Tensor& parameter : alone_->parameters()) count += parameter.numel();
    return at::zeros({count});
  }

  const treadle::ProcessGroup group_;
  Case case_;
  std::shared_ptr<Model> alone_;
  treadle::DistributedDataParallel<Model> averaged_;
  torch::optim::SGD aloneOptimizer_{alone_->parameters(), torch::optim::SGDOptions(Case::kLearningRate)};
  torch::optim::SGD optimizer_{averaged_->parameters(), torch::optim::SGDOptions(Case::kLearningRate)};
  at::Tensor gradients_ = likeGradients();
  torch::data::Example<> batch_;
  double loss_ = 0;  // of the last step that was averaged
};

std::vector<double> valuesOf(const at::Tensor& row) {
  const at::Tensor values = row.contiguous();
  return {values.const_data_ptr<double>(), values.const_data_ptr<double>() + values.numel()};
}

// `all` is [ranks, 4, pairs]. A step takes as long as it takes the slowest rank.
void print(const std::string& name, const at::Tensor& all) {
  const at::Tensor slowest = all.amax(0), step = slowest[0], compute = slowest[1];
  const at::Tensor losses = all.mean(0)[3];
  if (!losses.isfinite().all().item<bool>()) throw std::runtime_error("a loss of the " + name + " is not a number");
  bench::print("ddp_exposed_" + name, {"", "us", valuesOf(step - compute)});
  bench::print("ddp_step_" + name, {"", "us", valuesOf(step)});
  bench::print("ddp_compute_" + name, {"", "us", valuesOf(compute)});
  bench::print("ddp_communication_" + name, {"", "us", valuesOf(slowest[2])});
  bench::print("ddp_loss_" + name, {"", "nats", valuesOf(losses.slice(0, -kLossesAtEnd).mean().reshape({1}))});
}

template <class Case>
void measure(const std::string& name, const treadle::ProcessGroup& group, treadle::AverageBy averageBy,
             int repetitions) {
  const at::Tensor figures = Training<Case>(group, averageBy).run(repetitions * Case::kPairs);
  at::Tensor all = at::empty({group.size(), figures.size(0), figures.size(1)}, at::kDouble);
  treadle::allGather(group, figures, all).wait();
  if (group.rank() == 0) print(name, all);
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Steps of data-parallel training; start it with: treadle run -n 2 -- PROGRAM --model transformer");
  bench::TrainingOptions training;
  training.addTo(app);
  treadle::JoinOptions join;
  app.add_option("--listen", join.listenAddress, "address, when the workers are on different hosts: tcp://10.0.0.7:0");
  const std::map<std::string, treadle::AverageBy> all = {{"automatic", treadle::AverageBy::kAutomatic},
                                                         {"group", treadle::AverageBy::kGroup},
                                                         {"service", treadle::AverageBy::kService}};
  auto averageBy = treadle::AverageBy::kAutomatic;
  app.add_option("--average-by", averageBy, "automatic, group or service")->transform(CLI::CheckedTransformer(all));
  CLI11_PARSE(app, argc, argv);
  join.allowPlaintext = join.listenAddress.has_value();
  at::set_num_threads(1);
  auto worker = treadle::join(join);
  std::vector<std::string> members;
  for (const treadle::WorkerInfo& peer : worker->peers()) members.push_back(peer.name);
  auto group = treadle::ProcessGroup::make(*worker, members);
  const auto measureModel = training.model == "cnn" ? measure<bench::CnnCase> : measure<bench::TransformerCase>;
  measureModel(training.model, group, averageBy, training.repetitions);
  worker->shutdown();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench: %s\n", error.what());
  return 1;
}

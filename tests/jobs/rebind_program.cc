// Trains by averaged gradients with all workers of its job until one is lost, and then fifty steps with the others. One
// loss is all that it goes on after.
// Says "step N" after each, and at the end "done with M members" and the sum of its parameters.

#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>
#include <treadle/ddp.h>
#include <treadle/group.h>
#include <treadle/rpc.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kStepsAfterALoss = 50, kMostSteps = 1'000'000;

class Training {
 public:
  Training(treadle::Worker& worker, int size) : worker_(worker) {
    for (int rank = 0; rank < size; ++rank) members_.push_back("worker" + std::to_string(rank));
    ddp_ = std::make_unique<treadle::DistributedDataParallel<torch::nn::Linear>>(net_, newGroup());
    renewOptimizer();
  }

  // Returns whether a worker was lost.
  bool run() {
    bool isLost = false;
    for (int64_t next = 0; next <= end_;) {
      try {
        if (isLost) next = goOn(next);
        isLost = false;
        next < end_ ? step(next) : end();
        ++next;
      } catch (const treadle::PeerLostError& error) {
        if (std::erase(members_, error.worker()) == 0) throw;
        isLost = true;
      }
    }
    return end_ < kMostSteps;
  }

 private:
  treadle::ProcessGroup newGroup() { return treadle::ProcessGroup::make(worker_, members_); }
  void renewOptimizer() {
    optimizer_ = std::make_unique<torch::optim::SGD>(net_->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9));
  }

  void step(int64_t number) {
    at::manual_seed(static_cast<uint64_t>(1000 * number + worker_.self().rank));
    optimizer_->zero_grad();
    ddp_->forward(at::randn({16, 8}, at::kDouble)).square().mean().backward();
    optimizer_->step();
    std::printf("step %lld\n", static_cast<long long>(number));
    std::fflush(stdout);
  }

  // The others may leave, and so end the barrier, when they have ended it.
  void end() {
    if (!std::exchange(hasReported_, true)) {
      double sum = 0;
      for (const at::Tensor& parameter : net_->parameters()) sum += parameter.detach().sum().item<double>();
      std::printf("done with %zu members: %.17g\n", members_.size(), sum);
    }
    treadle::barrier(ddp_->group()).wait();
  }

  // The step that is next on all members; some may have made one more.
  int64_t goOn(int64_t next) {
    const treadle::ProcessGroup group = newGroup();
    if (!ddp_->rebind(group)) renewOptimizer();
    at::Tensor latest = at::full({1}, next, at::kLong);
    treadle::allReduce(group, latest, treadle::ReduceOp::kMax).wait();
    if (!hasReported_) end_ = latest.item<int64_t>() + kStepsAfterALoss;
    return latest.item<int64_t>();
  }

  treadle::Worker& worker_;
  std::vector<std::string> members_;
  torch::nn::Linear net_ = makeNet();
  std::unique_ptr<treadle::DistributedDataParallel<torch::nn::Linear>> ddp_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
  int64_t end_ = kMostSteps;
  bool hasReported_ = false;

  static torch::nn::Linear makeNet() {
    torch::nn::Linear net(8, 4);
    net->to(at::kDouble);
    return net;
  }
};

}  // namespace

int main() {
  try {
    at::set_num_threads(1);
    treadle::JoinOptions options;
    options.launch = treadle::valueOrThrow(treadle::Launch::detect());
    options.name = "worker" + std::to_string(options.launch->rank);
    const int size = options.launch->worldSize;
    const auto worker = treadle::join(std::move(options));
    const bool isOneLost = Training(*worker, size).run();
    try {
      worker->shutdown();
    } catch (const treadle::PeerLostError&) {
      if (!isOneLost) throw;  // else it throws that loss once more
    }
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rebind_program: %s\n", error.what());
    return 1;
  }
}

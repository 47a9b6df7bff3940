// Distributed autograd: two linear layers, the second one at the other worker, as in table 2 of the paper on PyTorch
// RPC (Damania et al., MLSys 2023), and a chain of calls.
#include <ATen/ops/rand.h>
#include <torch/csrc/autograd/autograd.h>

#include <array>
#include <optional>

#include "bench/ours/cases.h"
#include "treadle/autograd.h"
#include "treadle/tensor/autograd/interceptor.h"

namespace bench {
namespace {

using treadle::AutogradContext;
using treadle::AutogradMode;
using treadle::Worker;

constexpr int kWarmUp = 10;
constexpr int kLaps = 10;  // times the repetitions
constexpr int64_t kBatch = 32;
constexpr int kCallsOfAChain = 50;  // there and back: two hops each
constexpr int kLocalNodes = 10000;

enum Column { kNorpcFwd, kNogradFwd, kGradFwd, kNorpcBwd, kGradBwd, kColumns };
using Lap = std::array<double, kColumns>;

// The columns of the table: microseconds of a pass of each. What a column does not name goes before and is not counted.
class TwoLayers {
 public:
  explicit TwoLayers(Worker& worker) : worker_(worker) {}

  // One of each, in one of 20 orders: first and step change, so that within laps each column comes after each other
  // equally often.
  Lap lap(int number) {
    Lap times{};
    const int step = 1 + number / kColumns % (kColumns - 1);
    for (int i = 0; i < kColumns; ++i) {
      const int column = (number + step * i) % kColumns;
      times[column] = timeOfColumn(column);
    }
    return times;
  }

 private:
  at::Tensor local() const { return there_.forward(here_.forward(input_)); }
  at::Tensor remote() const { return worker_.call<&secondLayer>(kServer, here_.forward(input_)); }

  double timeOfColumn(int column) {
    switch (column) {
      case kNorpcFwd: return timeOf([&] { local(); });
      case kNogradFwd: return nogradForward();
      case kGradFwd: return gradForward();
      case kNorpcBwd: return norpcBackward();
      default: return gradBackward();
    }
  }

  double nogradForward() {
    return timeOf([&] {
      at::NoGradGuard noGradients;
      remote();
    });
  }

  double gradForward() {
    std::optional<AutogradContext> context;
    return timeOf([&] {
      context.emplace(worker_);
      remote();
    });
  }

  double norpcBackward() {
    at::Tensor loss = local().sum();
    return timeOf([&] { torch::autograd::backward({loss}, {}); });
  }

  double gradBackward() {
    AutogradContext context(worker_);
    at::Tensor loss = remote().sum();
    return timeOf([&] { context.backward({loss}); });
  }

  Worker& worker_;
  Layer here_, there_;
  at::Tensor input_ = at::rand({kBatch, Layer::kWidth});
};

// What is reported of a lap: the columns and their differences, which are so of pairs.
struct Reported {
  const char* name;
  double (*of)(const Lap& lap);
};
constexpr Reported kReported[] = {
    {"autograd_norpc_fwd", [](const Lap& lap) { return lap[kNorpcFwd]; }},
    {"autograd_nograd_fwd", [](const Lap& lap) { return lap[kNogradFwd]; }},
    {"autograd_grad_fwd", [](const Lap& lap) { return lap[kGradFwd]; }},
    {"autograd_norpc_bwd", [](const Lap& lap) { return lap[kNorpcBwd]; }},
    {"autograd_grad_bwd", [](const Lap& lap) { return lap[kGradBwd]; }},
    {"autograd_forward_overhead", [](const Lap& lap) { return lap[kGradFwd] - lap[kNorpcFwd]; }},
    {"autograd_backward_overhead", [](const Lap& lap) { return lap[kGradBwd] - lap[kNorpcBwd]; }},
    {"autograd_added_forward", [](const Lap& lap) { return lap[kGradFwd] - lap[kNogradFwd]; }},
    {"autograd_added_backward",
     [](const Lap& lap) { return lap[kGradBwd] - lap[kNorpcBwd] - (lap[kNogradFwd] - lap[kNorpcFwd]); }},
};

std::vector<Series> twoLayers(Worker& worker, int repetitions) {
  TwoLayers layers(worker);
  std::vector<Series> series;
  for (const Reported& one : kReported) series.push_back({"", "us", {}, one.name});
  for (int i = 0; i < kWarmUp + kLaps * repetitions; ++i) {
    const Lap lap = layers.lap(i);
    for (size_t k = 0; i >= kWarmUp && k < series.size(); ++k) series[k].values.push_back(kReported[k].of(lap));
  }
  return series;
}

void chain(Worker& worker, AutogradMode mode) {
  AutogradContext context(worker, {mode});
  at::Tensor x = at::rand({kBatch}).requires_grad_(), y = x;
  for (int i = 0; i < kCallsOfAChain; ++i) y = worker.call<&twice>(kServer, y);
  context.backward({y.sum()});
}

std::vector<Series> chainOfCalls(Worker& worker, int repetitions) {
  return {timed(kWarmUp, repetitions, [] {}, [&] { chain(worker, AutogradMode::kSmart); })};
}

std::vector<Series> smartAndFast(Worker& worker, int repetitions) {
  const treadle::autograd::Contexts& contexts = treadle::autograd::interceptorOf(worker).contexts();
  const auto before = contexts.lineage();
  std::vector<Series> both = alternated(
      "fast", kWarmUp, 3 * repetitions, [] {}, [&] { chain(worker, AutogradMode::kSmart); },
      [&] { chain(worker, AutogradMode::kFast); });
  const auto after = contexts.lineage();
  auto messages = static_cast<double>(after.messages - before.messages);
  both.push_back({"lineage_per_message", "bytes", {static_cast<double>(after.bytes - before.bytes) / messages}, ""});
  return both;
}

// A call with the result of many local nodes that hang on an earlier call, in both modes: the first such call, or the
// one after it.
std::vector<Series> behindLocalNodes(Worker& worker, int repetitions, bool isFirst) {
  std::vector<Series> both = {{"", "us", {}}, {"fast", "us", {}}};
  for (int i = 0; i < kWarmUp + repetitions; ++i) {
    for (Series& series : both) {
      AutogradContext context(worker, {series.of.empty() ? AutogradMode::kSmart : AutogradMode::kFast});
      at::Tensor y = worker.call<&twice>(kServer, at::rand({kBatch}).requires_grad_());
      for (int node = 0; node < kLocalNodes; ++node) y = y + 1;
      const auto call = [&] { worker.call<&twice>(kServer, y); };
      if (!isFirst) call();
      const double time = timeOf(call);
      if (i >= kWarmUp) series.values.push_back(time);
    }
  }
  return both;
}

std::vector<Series> lineageFirst(Worker& worker, int repetitions) {
  return behindLocalNodes(worker, repetitions, /*isFirst=*/true);
}
std::vector<Series> lineageNext(Worker& worker, int repetitions) {
  return behindLocalNodes(worker, repetitions, /*isFirst=*/false);
}

}  // namespace

void addAutogradCases(Cases& cases) {
  cases["autograd_two_layers"] = &twoLayers;
  cases["autograd_chain_100"] = &chainOfCalls;
  cases["autograd_smart"] = &smartAndFast;
  cases["autograd_lineage_first"] = &lineageFirst;
  cases["autograd_lineage_next"] = &lineageNext;
}

}  // namespace bench

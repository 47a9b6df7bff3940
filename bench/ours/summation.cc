// The sums of a server on one core: 64 MB of a gradient are added to as many, beside memcpy of them and the steps of
// optimizers, in turn and in an order that changes: what one of them has written and not yet written back, the next one
// waits for, and memcpy leaves nothing of the kind. One process.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <new>
#include <span>
#include <vector>

#include "bench/limits/optimizer_steps.h"
#include "bench/ours/measure.h"
#include "treadle/core/io/private_pages.h"
#include "treadle/core/summation/sum.h"

namespace {

using treadle::group::DataType;

constexpr size_t kBytes = 64'000'000;

// Memory that has been written, so that no page is new; in huge pages where there are some, for all alike. With pages
// of 4 KiB a look into the page tables every 64 lines takes a third of the time of what is simple, as a sum.
class Memory {
 public:
  Memory() {
    std::byte* pages = treadle::io::mapPrivate(kBytes);
    if (pages == nullptr) throw std::bad_alloc();
    values_ = {reinterpret_cast<float*>(pages), kBytes / sizeof(float)};
    std::fill(values_.begin(), values_.end(), 1e-3F);
  }

  float* data() { return values_.data(); }
  size_t count() const { return values_.size(); }
  std::byte* bytes() { return reinterpret_cast<std::byte*>(values_.data()); }

 private:
  std::span<float> values_;  // until the process ends
};

struct Task {
  std::string caseName, of;
  std::function<void()> run;
};

void add(DataType type, Memory& all, Memory& gradient) {
  const std::byte* addends[] = {all.bytes(), gradient.bytes()};
  treadle::summation::sum(type, addends, kBytes / sizeOf(type), all.bytes());
}

// Over four rounds each task comes after four others. `count`: a power of two.
std::vector<size_t> orderOf(int round, size_t count) {
  std::vector<size_t> order;
  const auto turn = static_cast<size_t>(round + 2);
  for (size_t i = 0; i < count; ++i) order.push_back((i * (2 * turn + 1) + turn) % count);
  return order;
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("Sums of 64 MB on one core");
  int repetitions = 20;
  app.add_option("--repetitions", repetitions, "timed runs of each")->check(CLI::PositiveNumber);
  CLI11_PARSE(app, argc, argv);
  Memory gradient, sums, halves, bfloats, weights, first, second;
  const size_t count = gradient.count();
  const std::vector<Task> tasks = {
      {"summation_float", "", [&] { add(DataType::kFloat32, sums, gradient); }},
      {"summation_half", "", [&] { add(DataType::kFloat16, halves, gradient); }},
      {"summation_bfloat16", "", [&] { add(DataType::kBFloat16, bfloats, gradient); }},
      {"summation_float", "memcpy", [&] { std::memcpy(sums.data(), gradient.data(), kBytes); }},
      {"summation_float", "sgd", [&] { bench::stepSgd(weights.data(), gradient.data(), count); }},
      {"summation_float", "momentum",
       [&] { bench::stepMomentum(weights.data(), first.data(), gradient.data(), count); }},
      {"summation_float", "rmsprop",
       [&] { bench::stepRmsProp(weights.data(), second.data(), gradient.data(), count); }},
      {"summation_float", "adam",
       [&] { bench::stepAdam(weights.data(), first.data(), second.data(), gradient.data(), count); }}};
  std::vector<bench::Series> series;
  for (const Task& task : tasks) series.push_back({task.of, "us", {}, task.caseName});
  for (int round = -2; round < repetitions; ++round) {  // two to warm up
    for (const size_t i : orderOf(round, tasks.size())) {
      const double time = bench::timeOf(tasks[i].run);
      if (round >= 0) series[i].values.push_back(time);
    }
  }
  for (bench::Series& one : series) bench::print(one.caseName, std::move(one));
  std::fprintf(stderr, "sums by %s\n", std::string(treadle::summation::instructionsOfSums()).c_str());
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench: %s\n", error.what());
  return 1;
}

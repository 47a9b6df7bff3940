// The field's first experiment with our calls: ten calls at once of a function that returns its tensor and of one with
// 200 pointwise operations, and a tensor fetched by reference. What a user has to write beyond the functions themselves
// stands between `// [` and `// ]`; bench/seed.py counts those lines. Started by `treadle run -n 2`.

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/rand.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>

#include "bench/ours/measure.h"
#include "treadle/rpc.h"

namespace {

at::Tensor identity(at::Tensor tensor) { return tensor; }

at::Tensor pointwise(at::Tensor tensor) {
  for (int i = 0; i < 100; ++i) tensor = (tensor * 1.0001).add(0.0001);
  return tensor;
}

// [
int64_t fetch(const treadle::RRef<at::Tensor>& tensor) { return tensor.toHere().numel(); }
// ]

template <auto F>
void tenAtOnce(treadle::Worker& worker, const at::Tensor& tensor) {
  // [
  std::vector<treadle::Future<at::Tensor>> results;
  for (int i = 0; i < 10; ++i) results.push_back(worker.async<F>(1, tensor));
  treadle::whenAll(results).wait();
  // ]
}

void fetchByReference(treadle::Worker& worker, const at::Tensor& tensor) {
  // [
  worker.call<&fetch>(1, worker.makeRRef(tensor));
  // ]
}

struct Options {
  std::vector<int> sizes = {4, 40, 400};
  int repetitions = 3, pointwiseUpTo = 40;
  std::string listen;  // empty: on the loopback
};

// What takes long is measured once.
void measure(treadle::Worker& worker, const Options& options, int size) {
  at::Tensor tensor = at::rand({int64_t{size} << 18});
  auto write = [&] { tensor.uniform_(); };
  std::string at = "_" + std::to_string(size) + "MB";
  int few = size > 40 ? 1 : options.repetitions;
  bench::print("identity" + at, bench::timed(1, few, write, [&] { tenAtOnce<&identity>(worker, tensor); }));
  bench::print("fetch" + at, bench::timed(1, few, write, [&] { fetchByReference(worker, tensor); }));
  if (size > options.pointwiseUpTo) return;
  int times = size > 4 ? 1 : options.repetitions;
  bench::print("pointwise" + at, bench::timed(0, times, write, [&] { tenAtOnce<&pointwise>(worker, tensor); }));
}

void run(const Options& options) {
  // [
  auto functions = treadle::Functions().add<&identity>("identity").add<&pointwise>("pointwise").add<&fetch>("fetch");
  treadle::JoinOptions join{.name = std::string("worker") + std::getenv("RANK"), .functions = functions};
  // ]
  if (!options.listen.empty()) {
    join.listenAddress = options.listen;
    join.allowPlaintext = true;
  }
  // [
  auto worker = treadle::join(std::move(join));
  // ]
  if (worker->self().rank == 0)
    for (int size : options.sizes) measure(*worker, options, size);
  // [
  worker->shutdown();
  // ]
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("The field's first experiment; start it with: treadle run -n 2 -- PROGRAM");
  Options options;
  app.add_option("--sizes", options.sizes, "in MB")->delimiter(',');
  app.add_option("--repetitions", options.repetitions)->check(CLI::PositiveNumber);
  app.add_option("--listen", options.listen, "address, when the workers are on different hosts: tcp://10.0.0.7:0");
  app.add_option("--pointwise-up-to", options.pointwiseUpTo, "MB; larger tensors take minutes");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  run(options);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "bench: %s\n", error.what());
  return 1;
}

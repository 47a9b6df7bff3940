// The program of docs/guide/getting_started.md, as a user would write it. first_program_test.cc starts it.

// [first-program]
#include <ATen/ATen.h>
#include <treadle/rpc.h>

#include <iostream>
#include <string>
#include <utility>

namespace {

at::Tensor scale(const at::Tensor& values, double factor) { return values * factor; }

void run() {
  treadle::Launch launch = treadle::valueOrThrow(treadle::Launch::detect());
  treadle::JoinOptions options;
  options.name = "worker" + std::to_string(launch.rank);
  options.functions.add<&scale>("scale");
  options.launch = std::move(launch);
  auto worker = treadle::join(std::move(options));  // returns when all workers of the job are there

  if (worker->self().rank == 0) {
    at::Tensor answer = worker->call<&scale>("worker1", at::ones({2, 3}), 2.0);
    std::cout << "the sum is " << answer.sum().item<double>() << std::endl;
  }
  worker->shutdown();  // serves the others until all have come here
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << std::endl;
    return 1;
  }
}
// [/first-program]

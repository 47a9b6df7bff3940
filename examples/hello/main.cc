// The smallest job: worker0 asks worker1 to scale a tensor. See README.md.

// [hello]
#include <ATen/ATen.h>
#include <treadle/rpc.h>

#include <iostream>

at::Tensor scale(const at::Tensor& values, double factor) { return values * factor; }

int main() try {
  treadle::JoinOptions options;
  options.functions.add<&scale>("scale");  // what others may call here
  auto worker = treadle::join(options);    // returns when all workers of the job are there

  if (worker->self().rank == 0) {
    at::Tensor answer = worker->call<&scale>("worker1", at::ones({2, 3}), 2.0);
    std::cout << "the sum is " << answer.sum().item<double>() << std::endl;
  }
  worker->shutdown();  // serves the others until all have come here
} catch (const std::exception& error) {
  std::cerr << "hello: " << error.what() << std::endl;
  return 1;
}
// [/hello]

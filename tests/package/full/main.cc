// A job of one worker that sends itself a tensor: treadle::treadle brings torch and everything over it.
#include <cstdio>
#include <utility>

#include <ATen/ATen.h>
#include <treadle/rpc.h>

namespace {

at::Tensor twice(const at::Tensor& values) { return values * 2; }

}  // namespace

int main() {
  try {
    treadle::JoinOptions options;
    options.name = "outside";
    options.functions.add<&twice>("twice");
    auto worker = treadle::join(std::move(options));
    at::Tensor answer = worker->call<&twice>("outside", at::arange(4));
    worker->shutdown();
    std::puts(at::equal(answer, at::arange(4) * 2) ? "outside: ok" : "outside: wrong answer");
  } catch (const treadle::Error& error) {
    std::printf("outside: %s\n", error.what());
    return 1;
  }
}

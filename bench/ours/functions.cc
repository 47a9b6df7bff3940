// What the two workers call on each other.
#include <ATen/ops/linear.h>
#include <ATen/ops/rand.h>
#include <unistd.h>

#include <fstream>

#include "bench/ours/cases.h"

namespace bench {

void nothing() {}
at::Tensor identity(at::Tensor tensor) { return tensor; }
at::Tensor pointwise(at::Tensor tensor) {
  for (int i = 0; i < 100; ++i) tensor = (tensor * 1.0001).add(0.0001);
  return tensor;
}
int64_t fetched(const treadle::RRef<at::Tensor>& tensor) { return tensor.toHere().numel(); }

int64_t residentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t peakBytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

void resetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

Layer::Layer() : weight(at::rand({kWidth, kWidth})), bias(at::rand({kWidth})) {
  for (at::Tensor* parameter : {&weight, &bias}) parameter->mul_(0.01).requires_grad_();
}
at::Tensor Layer::forward(const at::Tensor& input) const { return at::linear(input, weight, bias); }

at::Tensor secondLayer(const at::Tensor& hidden) {
  static const Layer layer;
  return layer.forward(hidden);
}
at::Tensor twice(const at::Tensor& tensor) { return tensor * 2; }

treadle::Functions served() {
  return treadle::Functions()
      .add<&nothing>("nothing")
      .add<&identity>("identity")
      .add<&pointwise>("pointwise")
      .add<&fetched>("fetched")
      .add<&residentBytes>("residentBytes")
      .add<&peakBytes>("peakBytes")
      .add<&resetPeak>("resetPeak")
      .add<&secondLayer>("secondLayer")
      .add<&twice>("twice");
}

}  // namespace bench

#include "treadle/tensor/optim/named_values.h"

#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <sstream>

#include "treadle/core/base/error.h"

namespace treadle::optim {
namespace {

at::Tensor takeTensor(NamedTensors& from, const std::string& name) {
  auto found = from.find(name);
  if (found == from.end()) raise(invalidArgument("the state has no '" + name + "', which is needed here"));
  at::Tensor tensor = found->second;
  from.erase(found);
  if (!tensor.defined()) raise(invalidArgument("'" + name + "' of the state is no tensor"));
  return tensor.detach();
}

// Numbers are of one type and shape in all states; others would be rounded without a word.
at::Tensor takeNumbers(NamedTensors& from, const std::string& name, at::ScalarType type, at::IntArrayRef sizes) {
  at::Tensor tensor = takeTensor(from, name);
  if (tensor.layout() != at::kStrided || tensor.is_meta())
    raise(invalidArgument("'" + name + "' of the state is no dense tensor with values"));
  if (tensor.scalar_type() == type && tensor.sizes() == sizes) return tensor;
  std::ostringstream text;
  text << "'" << name << "' of the state is a " << tensor.scalar_type() << tensor.sizes() << ", and has to be a "
       << type << sizes;
  raise(invalidArgument(text.str()));
}

}  // namespace

at::Tensor asTensor(double value) { return torch::tensor(value, at::kDouble); }
at::Tensor asTensor(int64_t value) { return torch::tensor(value, at::kLong); }
at::Tensor asTensor(bool value) { return torch::tensor(value, at::kBool); }
at::Tensor asTensor(const std::tuple<double, double>& values) {
  return torch::tensor({std::get<0>(values), std::get<1>(values)}, at::kDouble);
}
at::Tensor asTensor(const at::Tensor& value) { return value.defined() ? value.detach().clone() : value; }

double take(NamedTensors& from, const std::string& name, double) {
  return takeNumbers(from, name, at::kDouble, {}).item<double>();
}
int64_t take(NamedTensors& from, const std::string& name, int64_t) {
  const auto count = takeNumbers(from, name, at::kLong, {}).item<int64_t>();
  if (count < 0)
    raise(invalidArgument("'" + name + "' of the state is " + std::to_string(count) + ", and has to be a count"));
  return count;
}
bool take(NamedTensors& from, const std::string& name, bool) {
  return takeNumbers(from, name, at::kBool, {}).item<bool>();
}
std::tuple<double, double> take(NamedTensors& from, const std::string& name, const std::tuple<double, double>&) {
  at::Tensor values = takeNumbers(from, name, at::kDouble, {2});
  return {values[0].item<double>(), values[1].item<double>()};
}

at::Tensor takeLike(NamedTensors& from, const std::string& name, const at::Tensor& like) {
  at::Tensor tensor = takeTensor(from, name);
  if (tensor.sizes() != like.sizes()) {
    std::ostringstream text;
    text << "'" << name << "' of the state is of shape " << tensor.sizes() << ", and its parameter of shape "
         << like.sizes();
    raise(invalidArgument(text.str()));
  }
  // libtorch's SGD keeps its first momentum as sparse as the gradient was, and goes on with a dense one alike.
  if (tensor.is_sparse()) tensor = tensor.to_dense();
  if (tensor.layout() != at::kStrided || tensor.is_meta())
    raise(invalidArgument("'" + name + "' of the state is no dense tensor with values"));
  return tensor.to(like.options(), /*non_blocking=*/false, /*copy=*/true);
}

void refuseRest(const NamedTensors& rest) {
  if (!rest.empty()) raise(invalidArgument("the state has '" + rest.begin()->first + "', which is unknown here"));
}

NamedTensors withPrefix(const NamedTensors& from, const std::string& prefix) {
  NamedTensors found;
  for (auto entry = from.lower_bound(prefix); entry != from.end() && entry->first.starts_with(prefix); ++entry)
    found.insert(*entry);
  return found;
}

std::string statePrefix(int64_t parameter) { return "state." + std::to_string(parameter) + "."; }
std::string groupPrefix(size_t group) { return "param_groups." + std::to_string(group) + "."; }

const at::Tensor& parameterOf(torch::optim::Optimizer& optimizer) {
  return optimizer.param_groups().at(0).params().at(0);
}
void* keyOf(torch::optim::Optimizer& optimizer) { return parameterOf(optimizer).unsafeGetTensorImpl(); }

}  // namespace treadle::optim

#pragma once
// The fields of optimizers as named tensors and back. Functions without state.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <tuple>

namespace torch::optim {
class Optimizer;
}

namespace treadle::optim {

using NamedTensors = std::map<std::string, at::Tensor>;

// Numbers as tensors without dimensions of their own type; a pair of them has one dimension. Tensors are copied, an
// undefined one stays so.
at::Tensor asTensor(double value);
at::Tensor asTensor(int64_t value);
at::Tensor asTensor(bool value);
at::Tensor asTensor(const std::tuple<double, double>& values);
at::Tensor asTensor(const at::Tensor& value);

// Takes `name` out of `from` as a number, a whole one as a count that is not negative; the last argument only says of
// which type. ArgumentError when it is missing, or a tensor of another type or size.
double take(NamedTensors& from, const std::string& name, double);
int64_t take(NamedTensors& from, const std::string& name, int64_t);
bool take(NamedTensors& from, const std::string& name, bool);
std::tuple<double, double> take(NamedTensors& from, const std::string& name, const std::tuple<double, double>&);
// A dense copy of the type and on the device of `like`, whose shape it must have.
at::Tensor takeLike(NamedTensors& from, const std::string& name, const at::Tensor& like);
// ArgumentError that names a tensor that nobody took.
void refuseRest(const NamedTensors& rest);

// Those whose names begin so.
NamedTensors withPrefix(const NamedTensors& from, const std::string& prefix);
std::string statePrefix(int64_t parameter);
std::string groupPrefix(size_t group);

// Of an optimizer with one parameter: that, and the key of its state.
const at::Tensor& parameterOf(torch::optim::Optimizer& optimizer);
void* keyOf(torch::optim::Optimizer& optimizer);

}  // namespace treadle::optim

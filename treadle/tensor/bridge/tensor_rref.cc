#include "treadle/tensor/bridge/tensor_rref.h"

#include "treadle/tensor/bridge/operators.h"

namespace treadle {

using Methods = RRefMethods<at::Tensor>;
using Ref = RRef<at::Tensor>;

namespace {

// The overload for a number or for a tensor on the right.
Ref overloadFor(const char* name, const Operand& left, const Operand& right) {
  return opRemote(std::string(name) + (right.isNumber() ? ".Scalar" : ".Tensor"), {left, right});
}

}  // namespace

const Ref& Methods::self() const { return static_cast<const Ref&>(*this); }

Ref Methods::apply(const char* schema, std::vector<Operand> more) const {
  more.insert(more.begin(), self());
  return opRemote(schema, std::move(more));
}

Ref Methods::add(const Operand& other) const { return overloadFor("aten::add", self(), other); }
Ref Methods::sub(const Operand& other) const { return overloadFor("aten::sub", self(), other); }
Ref Methods::mul(const Operand& other) const { return overloadFor("aten::mul", self(), other); }
Ref Methods::div(const Operand& other) const { return overloadFor("aten::div", self(), other); }
Ref Methods::pow(const Operand& exponent) const {
  return apply(exponent.isNumber() ? "aten::pow.Tensor_Scalar" : "aten::pow.Tensor_Tensor", {exponent});
}
Ref Methods::mm(const Operand& other) const { return apply("aten::mm", {other}); }
Ref Methods::matmul(const Operand& other) const { return apply("aten::matmul", {other}); }
Ref Methods::bmm(const Operand& other) const { return apply("aten::bmm", {other}); }

Ref Methods::neg() const { return apply("aten::neg", {}); }
Ref Methods::abs() const { return apply("aten::abs", {}); }
Ref Methods::exp() const { return apply("aten::exp", {}); }
Ref Methods::log() const { return apply("aten::log", {}); }
Ref Methods::sqrt() const { return apply("aten::sqrt", {}); }
Ref Methods::relu() const { return apply("aten::relu", {}); }
Ref Methods::sigmoid() const { return apply("aten::sigmoid", {}); }
Ref Methods::tanh() const { return apply("aten::tanh", {}); }
Ref Methods::softmax(int64_t dim) const { return apply("aten::softmax.int", {dim}); }
Ref Methods::log_softmax(int64_t dim) const { return apply("aten::log_softmax.int", {dim}); }

Ref Methods::sum() const { return apply("aten::sum", {}); }
Ref Methods::sum(const Dims& dims, bool keepdim) const { return apply("aten::sum.dim_IntList", {dims, keepdim}); }
Ref Methods::mean() const { return apply("aten::mean", {}); }
Ref Methods::mean(const Dims& dims, bool keepdim) const { return apply("aten::mean.dim", {dims, keepdim}); }
Ref Methods::max() const { return apply("aten::max", {}); }
Ref Methods::min() const { return apply("aten::min", {}); }
Ref Methods::argmax(std::optional<int64_t> dim, bool keepdim) const { return apply("aten::argmax", {dim, keepdim}); }

Ref Methods::t() const { return apply("aten::t", {}); }
Ref Methods::transpose(int64_t first, int64_t second) const { return apply("aten::transpose.int", {first, second}); }
Ref Methods::reshape(const Dims& sizes) const { return apply("aten::reshape", {sizes}); }
Ref Methods::flatten(int64_t first, int64_t last) const { return apply("aten::flatten.using_ints", {first, last}); }
Ref Methods::squeeze(int64_t dim) const { return apply("aten::squeeze.dim", {dim}); }
Ref Methods::unsqueeze(int64_t dim) const { return apply("aten::unsqueeze", {dim}); }
Ref Methods::select(int64_t dim, int64_t index) const { return apply("aten::select.int", {dim, index}); }
Ref Methods::slice(int64_t dim, int64_t begin, int64_t end, int64_t step) const {
  return apply("aten::slice.Tensor", {dim, begin, end, step});
}

Ref Methods::clone() const { return apply("aten::clone", {}); }
Ref Methods::detach() const { return apply("aten::detach", {}); }
Ref Methods::to(at::ScalarType type) const { return apply("aten::to.dtype", {static_cast<int64_t>(type)}); }

Ref operator-(const Ref& operand) { return operand.neg(); }

namespace bridge {
namespace {

bool numberBeside(const Operand& left, const Operand& right) { return left.isNumber() && right.reference() != nullptr; }

}  // namespace

Ref add(const Operand& left, const Operand& right) {
  if (numberBeside(left, right)) return right.reference()->add(left);
  return overloadFor("aten::add", left, right);
}
Ref mul(const Operand& left, const Operand& right) {
  if (numberBeside(left, right)) return right.reference()->mul(left);
  return overloadFor("aten::mul", left, right);
}
Ref sub(const Operand& left, const Operand& right) {
  if (numberBeside(left, right)) return opRemote("aten::rsub.Scalar", {right, left});
  return overloadFor("aten::sub", left, right);
}
Ref div(const Operand& left, const Operand& right) {
  if (numberBeside(left, right)) return opRemote("aten::reciprocal", {right}).mul(left);
  return overloadFor("aten::div", left, right);
}

}  // namespace bridge
}  // namespace treadle

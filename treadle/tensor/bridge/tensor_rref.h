#pragma once
// The additional methods of an RRef<at::Tensor>: libtorch's usual operators and methods, by libtorch's names. Each runs
// on the owner and returns a reference to its result there, at once. toHere() fetches the result and throws what the
// operator threw. Operands that are references must have the same owner; tensors of this worker travel there. For any
// other operator: operators.h.

#include <ATen/core/Tensor.h>

#include "treadle/core/rpc/rref.h"

namespace treadle {

class Operand;

template <>
class RRefMethods<at::Tensor> {
 public:
  using Ref = RRef<at::Tensor>;
  using Dims = std::vector<int64_t>;

  Ref add(const Operand& other) const;
  Ref sub(const Operand& other) const;
  Ref mul(const Operand& other) const;
  Ref div(const Operand& other) const;
  Ref pow(const Operand& exponent) const;
  Ref mm(const Operand& other) const;
  Ref matmul(const Operand& other) const;
  Ref bmm(const Operand& other) const;

  Ref neg() const;
  Ref abs() const;
  Ref exp() const;
  Ref log() const;
  Ref sqrt() const;
  Ref relu() const;
  Ref sigmoid() const;
  Ref tanh() const;
  Ref softmax(int64_t dim) const;
  Ref log_softmax(int64_t dim) const;

  Ref sum() const;
  Ref sum(const Dims& dims, bool keepdim = false) const;
  Ref mean() const;
  Ref mean(const Dims& dims, bool keepdim = false) const;
  Ref max() const;
  Ref min() const;
  Ref argmax(std::optional<int64_t> dim = {}, bool keepdim = false) const;

  Ref t() const;
  Ref transpose(int64_t first, int64_t second) const;
  Ref reshape(const Dims& sizes) const;
  Ref flatten(int64_t first = 0, int64_t last = -1) const;
  Ref squeeze(int64_t dim) const;
  Ref unsqueeze(int64_t dim) const;
  Ref select(int64_t dim, int64_t index) const;
  Ref slice(int64_t dim, int64_t begin, int64_t end, int64_t step = 1) const;

  Ref clone() const;
  Ref detach() const;
  Ref to(at::ScalarType type) const;

 protected:
  RRefMethods() = default;
  ~RRefMethods() = default;
  RRefMethods(const RRefMethods&) = default;
  RRefMethods& operator=(const RRefMethods&) = default;

 private:
  const Ref& self() const;
  Ref apply(const char* schema, std::vector<Operand> more) const;
};

RRef<at::Tensor> operator-(const RRef<at::Tensor>& operand);

namespace bridge {

// One of the two is a reference to a tensor, and the other may be an operand beside it.
template <class A, class B>
concept WithTensorReference = (std::same_as<A, RRef<at::Tensor>> || std::same_as<B, RRef<at::Tensor>>) &&
                              std::constructible_from<Operand, const A&> && std::constructible_from<Operand, const B&>;

RRef<at::Tensor> add(const Operand& left, const Operand& right);
RRef<at::Tensor> sub(const Operand& left, const Operand& right);
RRef<at::Tensor> mul(const Operand& left, const Operand& right);
RRef<at::Tensor> div(const Operand& left, const Operand& right);

}  // namespace bridge

template <class A, class B>
  requires bridge::WithTensorReference<A, B>
RRef<at::Tensor> operator+(const A& left, const B& right) {
  return bridge::add(left, right);
}
template <class A, class B>
  requires bridge::WithTensorReference<A, B>
RRef<at::Tensor> operator-(const A& left, const B& right) {
  return bridge::sub(left, right);
}
template <class A, class B>
  requires bridge::WithTensorReference<A, B>
RRef<at::Tensor> operator*(const A& left, const B& right) {
  return bridge::mul(left, right);
}
template <class A, class B>
  requires bridge::WithTensorReference<A, B>
RRef<at::Tensor> operator/(const A& left, const B& right) {
  return bridge::div(left, right);
}

}  // namespace treadle

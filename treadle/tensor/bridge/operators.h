#pragma once
// Runs libtorch's own operators on another worker, by the name of their schema, also on tensors given by reference:
//
//   auto sum = treadle::op(worker, "b", "aten::add.Tensor", {x, y, 1});
//   // `output` is an RRef: all of this runs on its owner.
//   treadle::RRef<at::Tensor> loss = (output - target).pow(2).mean();
//
// Every worker joined by treadle::join offers them, with exceptions. It refuses operators outside of aten and operators
// that may trust their arguments: names that begin with an underscore, backward formulas, operators that write to an
// output argument, resize, leave memory unset or open files, and certain families (sparse, strided, recurrent, of other
// libraries). This is a filter by name, not a proof of safety: libtorch's operators are not written for untrusted
// callers, and the workers of a job trust each other.
//
// Throws, besides the exceptions of calls: NotFoundError for an unknown operator (it lists the existing overloads);
// ArgumentError for arguments that do not fit the schema (it shows the schema) or that the operator rejects, for a
// refused operator, and for operands of different owners.
//
// A number or a bool as a result becomes a tensor without dimensions; a list of tensors becomes several results.

#include <string_view>
#include <variant>
#include <vector>

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/bridge/ivalue_codec.h"

namespace treadle {

std::vector<at::Tensor> op(Worker& worker, const WorkerRef& to, std::string_view schema,
                           std::vector<c10::IValue> arguments);
Future<std::vector<at::Tensor>> opAsync(Worker& worker, const WorkerRef& to, std::string_view schema,
                                        std::vector<c10::IValue> arguments);
// The results stay on the callee.
RRef<std::vector<at::Tensor>> opRemote(Worker& worker, const WorkerRef& to, std::string_view schema,
                                       std::vector<c10::IValue> arguments);

// An argument of an operator: a value, or a reference to a tensor.
class Operand {
 public:
  template <class T>
    requires std::constructible_from<c10::IValue, T>
  Operand(T&& value) : value_(c10::IValue(std::forward<T>(value))) {}    // NOLINT: implicit
  Operand(RRef<at::Tensor> reference) : value_(std::move(reference)) {}  // NOLINT: implicit

  // Null when it is a value.
  const RRef<at::Tensor>* reference() const { return std::get_if<RRef<at::Tensor>>(&value_); }
  const c10::IValue* value() const { return std::get_if<c10::IValue>(&value_); }
  bool isNumber() const { return value() != nullptr && value()->isScalar(); }

 private:
  std::variant<c10::IValue, RRef<at::Tensor>> value_;
};

// Runs on the owner of the operands that are references; at least one must be. The other operands travel there.
std::vector<at::Tensor> op(std::string_view schema, std::vector<Operand> operands);
Future<std::vector<at::Tensor>> opAsync(std::string_view schema, std::vector<Operand> operands);
// For an operator with one result.
RRef<at::Tensor> opRemote(std::string_view schema, std::vector<Operand> operands);

namespace bridge {

// The operators that a worker with tensors offers.
Functions operatorFunctions();

}  // namespace bridge
}  // namespace treadle

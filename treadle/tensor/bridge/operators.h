#pragma once
// libtorch's own operators at another worker, by the name of their schema, and on tensors that are given by reference:
//
//   auto sum = treadle::op(worker, "b", "aten::add.Tensor", {x, y, 1});
//   treadle::RRef<at::Tensor> loss = (output - target).pow(2).mean();   // output is an RRef: all of it runs at its
//   owner
//
// Every worker that was joined by treadle::join offers them. Not all: operators whose name begins with an underscore,
// backward formulas, those that write to an argument that is given for it, resize, leave memory unset, open files, or
// belong to a family that takes its arguments on trust (sparse, strided, recurrent, of other libraries) are refused. It
// is a filter by name, not a proof: libtorch's operators are not written for strangers, and a job's workers are none.
//
// Thrown, besides what calls throw: NotFoundError for an operator that there is none of (with the overloads that there
// are), ArgumentError for arguments that do not fit it (its schema is told) or that it refuses itself, for one
// that is refused as above, and for operands of different owners.
//
// A result that is a number or a bool comes as a tensor without dimensions; lists of tensors come one after the other.

#include <string_view>
#include <variant>
#include <vector>

#include "treadle/core/worker/worker.h"
#include "treadle/tensor/bridge/ivalue_codec.h"

namespace treadle {

std::vector<at::Tensor> op(Worker& worker, const To& to, std::string_view schema, std::vector<c10::IValue> arguments);
Future<std::vector<at::Tensor>> opAsync(Worker& worker, const To& to, std::string_view schema,
                                        std::vector<c10::IValue> arguments);
// The results stay there.
RRef<std::vector<at::Tensor>> opRemote(Worker& worker, const To& to, std::string_view schema,
                                       std::vector<c10::IValue> arguments);

// An argument of an operator: a value, or a reference to a tensor.
class Operand {
 public:
  template <class T>
    requires std::constructible_from<c10::IValue, T>
  Operand(T&& value) : value_(c10::IValue(std::forward<T>(value))) {}    // NOLINT: implicit
  Operand(RRef<at::Tensor> reference) : value_(std::move(reference)) {}  // NOLINT: implicit

  // Null when it is none.
  const RRef<at::Tensor>* reference() const { return std::get_if<RRef<at::Tensor>>(&value_); }
  const c10::IValue* value() const { return std::get_if<c10::IValue>(&value_); }
  bool isNumber() const { return value() != nullptr && value()->isScalar(); }

 private:
  std::variant<c10::IValue, RRef<at::Tensor>> value_;
};

// At the owner of the operands that are references, of which there must be one; the others travel there.
std::vector<at::Tensor> op(std::string_view schema, std::vector<Operand> operands);
Future<std::vector<at::Tensor>> opAsync(std::string_view schema, std::vector<Operand> operands);
// For an operator with one result.
RRef<at::Tensor> opRemote(std::string_view schema, std::vector<Operand> operands);

namespace bridge {

// What a worker with tensors offers: the operators.
Functions operatorFunctions();

}  // namespace bridge
}  // namespace treadle

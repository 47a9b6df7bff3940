#include "treadle/tensor/bridge/operators.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/scalar_tensor.h>

#include <algorithm>
#include <array>

namespace treadle {
namespace {

using rpc::Decoder;
using rpc::Encoder;

constexpr const char* kManyResults = "treadle.op";
constexpr const char* kOneResult = "treadle.op.one";
constexpr const char* kSignature = "tensors (schema,operands)";
constexpr size_t kMostOperands = 256;

// Parts of the names that are refused: operators.h says why.
constexpr std::array kRefusedParts = {"::_",        "backward", "empty",    "resize",          "unsafe", "from_file",
                                      "::set_",     "sparse",   "strided",  "mkldnn",          "fbgemm", "quantize",
                                      "fractional", "ctc_loss", "segment_", "cudnn",           "miopen", "lstm",
                                      "gru",        "rnn_",     "storage",  "to_padded_tensor"};

c10::OperatorName split(const std::string& schema) {
  size_t dot = schema.find('.');
  return dot == std::string::npos ? c10::OperatorName(schema, "")
                                  : c10::OperatorName(schema.substr(0, dot), schema.substr(dot + 1));
}

Status noSuchOperator(const std::string& schema, const std::string& name) {
  std::string others;
  for (const c10::OperatorName& one : c10::Dispatcher::singleton().getAllOpNames())
    if (one.name == name)
      others += (others.empty() ? "; there are '" : ", '") + name + (one.overload_name.empty() ? "" : ".") +
                one.overload_name + "'";
  return notFound("libtorch has no operator '" + schema + "' here" +
                  (others.empty() ? "; names are like 'aten::add.Tensor'" : others));
}

c10::OperatorHandle find(const std::string& schema) {
  c10::OperatorName name = split(schema);
  std::optional<c10::OperatorHandle> found = c10::Dispatcher::singleton().findSchema(name);
  if (!found) raise(noSuchOperator(schema, name.name));
  const bool refused = !name.name.starts_with("aten::") ||
                       std::any_of(kRefusedParts.begin(), kRefusedParts.end(),
                                   [&](const char* part) { return name.name.find(part) != std::string::npos; });
  if (refused)
    raise(invalidArgument("operator '" + schema +
                          "' is not run for others, like all outside of aten and those that may trust their "
                          "arguments; write a function that calls it and add that"));
  for (const c10::Argument& argument : found->schema().arguments())
    if (argument.is_out())
      raise(invalidArgument("operator '" + schema + "' writes to an argument; take the one that gives a result"));
  return *found;
}

at::ScalarType typeOf(const c10::IValue& number) {
  if (number.isBool()) return at::kBool;
  if (number.isInt()) return at::kLong;
  return number.isComplexDouble() ? at::kComplexDouble : at::kDouble;
}

void addResult(std::vector<at::Tensor>& results, const c10::IValue& value) {
  if (value.isTensor()) return results.push_back(value.toTensor());
  if (value.isScalar()) return results.push_back(at::scalar_tensor(value.toScalar(), typeOf(value)));
  if (!value.isTensorList()) raise(invalidArgument("its result is a " + value.tagKind() + ", which is no tensor"));
  for (const at::Tensor& tensor : value.toTensorVector()) results.push_back(tensor);
}

// What libtorch throws holds a C++ stack trace, which is of no use to a caller elsewhere.
std::vector<at::Tensor> run(const std::string& schema, std::vector<c10::IValue> stack) {
  c10::OperatorHandle op = find(schema);
  try {
    op.schema().checkAndNormalizeInputs(stack);
    op.callBoxed(&stack);
    std::vector<at::Tensor> results;
    for (const c10::IValue& value : stack) addResult(results, value);
    return results;
  } catch (const c10::Error& error) {
    raise(invalidArgument(std::string("operator '") + schema + "': " + error.what_without_backtrace()));
  }
}

at::Tensor onlyOne(const std::string& schema, std::vector<at::Tensor> results) {
  if (results.size() != 1)
    raise(invalidArgument("operator '" + schema + "' has " + std::to_string(results.size()) +
                          " results; opRemote with references is for those with one"));
  return std::move(results[0]);
}

// Operands that were given by reference are the call's inputs, in order.
c10::IValue decodeOperand(Decoder& decoder, std::vector<rpc::Input>& inputs, size_t index) {
  for (rpc::Input& input : inputs)
    if (input.index == index) return rpc::takeInput<at::Tensor>(input);
  return rpc::Codec<c10::IValue>::decode(decoder);
}

std::pair<std::string, std::vector<c10::IValue>> decodeRequest(Decoder& decoder, std::vector<rpc::Input>& inputs) {
  auto schema = rpc::Codec<std::string>::decode(decoder);
  auto count = rpc::Codec<uint16_t>::decode(decoder);
  if (count > kMostOperands || (!inputs.empty() && inputs.back().index >= count))
    raise(dataLoss("an operator has too many operands"));
  std::vector<c10::IValue> stack;
  for (size_t i = 0; i < count; ++i) stack.push_back(decodeOperand(decoder, inputs, i));
  decoder.finish();
  return {std::move(schema), std::move(stack)};
}

void invokeForMany(CallContext&, Decoder& decoder, const rpc::Responder& responder) {
  auto [schema, stack] = decodeRequest(decoder, responder.call().inputs);
  rpc::answer(responder, run(schema, std::move(stack)));
}
void invokeForOne(CallContext&, Decoder& decoder, const rpc::Responder& responder) {
  auto [schema, stack] = decodeRequest(decoder, responder.call().inputs);
  rpc::answer(responder, onlyOne(schema, run(schema, std::move(stack))));
}

void encodeOperand(Encoder& encoder, uint16_t index, const Operand& operand) {
  if (operand.value() != nullptr) return rpc::Codec<c10::IValue>::encode(encoder, *operand.value());
  const rpc::HandlePtr& handle = handleOf(*operand.reference());
  std::shared_ptr<const void> value = rpc::valueToSend(encoder, handle, typeid(at::Tensor));
  if (!value) return encoder.addInput(index, handle);
  rpc::Codec<c10::IValue>::encode(encoder, *static_cast<const at::Tensor*>(value.get()));
}

// `operands` must live until the call has been sent.
rpc::OutgoingCall callOf(const char* function, int rank, std::string_view schema,
                         const std::vector<Operand>& operands) {
  if (operands.size() > kMostOperands)
    raise(invalidArgument("no operator has " + std::to_string(operands.size()) + " arguments"));
  return rpc::outgoingCall(rank, function, kSignature, {}, [name = std::string(schema), &operands](Encoder& encoder) {
    rpc::Codec<std::string>::encode(encoder, name);
    encoder.writer().number(static_cast<uint16_t>(operands.size()));
    for (size_t i = 0; i < operands.size(); ++i) encodeOperand(encoder, static_cast<uint16_t>(i), operands[i]);
  });
}

std::vector<Operand> operandsOf(std::vector<c10::IValue> arguments) {
  return {std::make_move_iterator(arguments.begin()), std::make_move_iterator(arguments.end())};
}

using Tensors = std::vector<at::Tensor>;

// Where an operator on references runs.
struct Place {
  rpc::EngineUse engine;
  int rank;
};

Place ownerOf(std::string_view schema, const std::vector<Operand>& operands) {
  const RRef<at::Tensor>* first = nullptr;
  for (const Operand& operand : operands) {
    const RRef<at::Tensor>* one = operand.reference();
    if (one == nullptr) continue;
    if (first == nullptr) first = one;
    if (one->owner() != first->owner())
      raise(invalidArgument("the operands of '" + std::string(schema) + "' have different owners, " +
                            link::describe(first->owner()) + " and " + link::describe(one->owner()) +
                            "; bring one over, by toHere() or by a call that takes it as a tensor"));
  }
  if (first == nullptr)
    raise(invalidArgument("no operand of '" + std::string(schema) + "' is a reference; give the worker that runs it"));
  auto engine = handleOf(*first)->references()->engine();
  if (!engine) raise(failedPrecondition("this RRef belongs to a worker that has left its job"));
  return {std::move(engine), first->owner().rank};
}

}  // namespace

std::vector<at::Tensor> op(Worker& worker, const WorkerRef& to, std::string_view schema,
                           std::vector<c10::IValue> arguments) {
  std::vector<Operand> operands = operandsOf(std::move(arguments));
  int rank = to.rank(worker.engine().membership());
  return rpc::callAndWait<Tensors>(worker.engine(), callOf(kManyResults, rank, schema, operands));
}
Future<std::vector<at::Tensor>> opAsync(Worker& worker, const WorkerRef& to, std::string_view schema,
                                        std::vector<c10::IValue> arguments) {
  std::vector<Operand> operands = operandsOf(std::move(arguments));
  int rank = to.rank(worker.engine().membership());
  return rpc::startCall<Tensors>(worker.engine(), callOf(kManyResults, rank, schema, operands));
}
RRef<std::vector<at::Tensor>> opRemote(Worker& worker, const WorkerRef& to, std::string_view schema,
                                       std::vector<c10::IValue> arguments) {
  std::vector<Operand> operands = operandsOf(std::move(arguments));
  int rank = to.rank(worker.engine().membership());
  return RRef<Tensors>(worker.engine().sendForReference(callOf(kManyResults, rank, schema, operands)));
}

std::vector<at::Tensor> op(std::string_view schema, std::vector<Operand> operands) {
  Place place = ownerOf(schema, operands);
  return rpc::callAndWait<Tensors>(*place.engine, callOf(kManyResults, place.rank, schema, operands));
}
Future<std::vector<at::Tensor>> opAsync(std::string_view schema, std::vector<Operand> operands) {
  Place place = ownerOf(schema, operands);
  return rpc::startCall<Tensors>(*place.engine, callOf(kManyResults, place.rank, schema, operands));
}
RRef<at::Tensor> opRemote(std::string_view schema, std::vector<Operand> operands) {
  Place place = ownerOf(schema, operands);
  return RRef<at::Tensor>(place.engine->sendForReference(callOf(kOneResult, place.rank, schema, operands)));
}

namespace bridge {

Functions operatorFunctions() {
  static const char many = 0, one = 0;
  Functions functions;
  functions.put(&many, {kManyResults, kSignature, &invokeForMany, false});
  functions.put(&one, {kOneResult, kSignature, &invokeForOne, false});
  return functions;
}

}  // namespace bridge
}  // namespace treadle

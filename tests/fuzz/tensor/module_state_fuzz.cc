// The state of a module (nn/module_state.h) as it comes from a peer, loaded into a module: it is taken whole, or
// refused by an ArgumentError and nothing is changed.

#include <torch/nn/module.h>

#include "tests/fuzz/tensor/message.h"
#include "treadle/tensor/nn/module_state.h"

namespace treadle::fuzz::module_state_fuzz {
namespace {

// A parameter and buffers of each kind of number.
struct Net : torch::nn::Module {
  Net() {
    register_parameter("weight", at::zeros({2, 3}));
    register_buffer("count", at::zeros({}, at::kLong));
    register_buffer("mask", at::zeros({2}, at::kBool));
    register_buffer("phase", at::zeros({2}, at::kComplexFloat));
  }
};

bool load(Net& net, const ModuleState& state) {
  try {
    loadState(net, state);
    return true;
  } catch (const ArgumentError&) {
    return false;
  }
}

void checkLoaded(const ModuleState& loaded, const ModuleState& state) {
  promise(loaded.size() == state.size(), "a module takes a state that has just its names");
  for (const auto& [name, tensor] : state) {
    const at::Tensor& own = loaded.at(name);
    promise(own.sizes() == tensor.sizes(), "and just its shapes");
    bool same = own.scalar_type() != tensor.scalar_type() || own.nbytes() == 0 ||
                std::memcmp(own.const_data_ptr(), tensor.const_data_ptr(), own.nbytes()) == 0;
    promise(same, "elements of its own types are taken as they are");
  }
}

void feed(Bytes input) {
  Choices choices(input);
  Message message = messageOf(choices);
  Coding coding;
  std::optional<ModuleState> state = coding.decode<ModuleState>(message);
  if (!state) return;
  Net net, same;
  const Message before = coding.encode(stateOf(net));
  bool loaded = load(net, *state);
  const Message after = coding.encode(stateOf(net));
  if (!loaded) return promise(after == before, "what is refused changes nothing");
  checkLoaded(stateOf(net), *state);
  promise(load(same, *coding.decode<ModuleState>(after)) && coding.encode(stateOf(same)) == after,
          "the state of a module makes another one the same");
}

Inputs seeds() {
  Net net;
  ModuleState state = stateOf(net), converted = state, misshapen = state, strange = state;
  uint8_t type = 0;
  for (auto& [name, tensor] : converted) tensor = tensor.to(bridge::scalarType(type += 4));
  misshapen["count"] = at::ones({1});
  strange["other"] = at::ones({1});
  Inputs all;
  for (const ModuleState& one : {state, converted, misshapen, strange}) all.push_back(inputOf(Coding().encode(one)));
  state["weight"] = at::Tensor();
  all.push_back(inputOf(Coding().encode(state)));
  return all;
}

const Fuzzer kModuleState("module_state", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::module_state_fuzz

#pragma once
// Everything about autograd nodes that differs between the torch versions we compile on, or hangs on how libtorch is
// built, in one place: up
// to 2.12 a node is held by std::shared_ptr and must be freed by torch's own deleter, from 2.13 on by
// c10::intrusive_ptr. The rest of the room says NodePtr, NodeRef<T> and makeNode<T>() and does not care. No
// state; any thread.

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/cpp_hook.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <typeinfo>
#include <utility>

namespace treadle::autograd {

using torch::autograd::Edge;
using torch::autograd::Node;

// What an edge holds its node by.
using NodePtr = std::decay_t<decltype(Edge::function)>;

inline constexpr bool kNodesAreIntrusive = !std::is_same_v<NodePtr, std::shared_ptr<Node>>;

// The same kind of pointer to a node class of our own; converts to NodePtr.
template <class T>
using NodeRef = std::conditional_t<kNodesAreIntrusive, c10::intrusive_ptr<T>, std::shared_ptr<T>>;

// Which of a node's outputs a tensor's hook is for; not known of kinds of hooks that Python makes. By name, as libtorch
// does not export the type.
// The sanitizer that compares types would want it too.
__attribute__((no_sanitize("vptr"))) inline std::optional<size_t> hookedOutput(
    const torch::autograd::FunctionPreHook& hook) {
  using Hook = torch::autograd::CppFunctionTensorPreHook;
  if (std::string_view(typeid(hook).name()) != "N5torch8autograd24CppFunctionTensorPreHookE") return std::nullopt;
  return static_cast<const Hook&>(hook).value_idx_;
}

template <class T, class... Args>
NodeRef<T> makeNode(Args&&... args) {
  if constexpr (kNodesAreIntrusive) {
    return c10::make_intrusive<T>(std::forward<Args>(args)...);
  } else {
    // The deleter takes long chains of nodes apart without recursion; it is found in torch's namespace by
    // argument type because it no longer exists where nodes are intrusive.
    auto owned = std::make_unique<T>(std::forward<Args>(args)...);
    return std::shared_ptr<T>(owned.release(), [](T* node) { deleteNode(node); });
  }
}

}  // namespace treadle::autograd

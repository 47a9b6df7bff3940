#include "treadle/tensor/bridge/thread_state.h"

#include <torch/version.h>

#include <optional>
#include <thread>

// What is compared below is all of at::ThreadLocalState in this release but what Python keeps in it, and autocast's
// types for devices that have no autocast. Other releases have other parts.
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 13
#define TREADLE_THREAD_STATE_IS_KNOWN 1
#include <ATen/DTensorState.h>
#include <ATen/FuncTorchTLS.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/core/impl/PyInterpreterHooks.h>
#include <c10/core/impl/PythonDispatcherTLS.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include <algorithm>
#include <array>
#endif

namespace treadle::bridge {
namespace {

// A thread of its own has the state that libtorch gives to every new thread.
template <class Make>
auto inFreshThread(Make make) {
  std::optional<decltype(make())> made;
  std::thread([&] { made.emplace(make()); }).join();
  return *std::move(made);
}

#ifdef TREADLE_THREAD_STATE_IS_KNOWN
std::array<bool, 7> autogradState() {
  const c10::AutogradState& state = c10::AutogradState::get_tls_state();
  return {state.get_grad_mode(),
          state.get_inference_mode(),
          state.get_fw_grad_mode(),
          state.get_multithreading_enabled(),
          state.get_view_replay_enabled(),
          state.get_grad_layout_enforcement_enabled(),
          state.get_graph_exec_group().has_value()};
}

std::array<bool, 3> recordingState() {
  const at::RecordFunctionTLS& state = at::get_record_function_tls_();
  return {state.tls_record_function_enabled_, state.sorted_tls_callbacks_.empty(),
          c10::ThreadLocalDebugInfo::current() == nullptr};
}

std::array<bool, 6> modes() {
  using Functions = at::impl::PythonTorchFunctionTLS;
  return {c10::impl::TorchDispatchModeTLS::any_modes_set(),
          c10::impl::PythonDispatcherTLS::get_state() == nullptr,
          Functions::get_disabled_state() == at::impl::TorchFunctionDisabledState::ENABLED,
          Functions::stack_len() == 0,
          Functions::peek_skip_next(),
          at::functorch::functorchTLSAccessor() == nullptr};
}

std::array<bool, 5> otherState() {
  const at::impl::SavedTensorDefaultHooksTLS& hooks = at::SavedTensorDefaultHooks::get_tls_state();
  return {hooks.stack.empty(), hooks.disabled_error_message.has_value(), hooks.is_tracing,
          at::functionalization::impl::getFunctionalizationReapplyViewsTLS(),
          at::get_dtensor_allow_implicit_replication()};
}

auto autocastTypes() {
  std::array<at::ScalarType, at::autocast::_AUTOCAST_SUPPORTED_DEVICES.size()> types;
  std::ranges::transform(at::autocast::_AUTOCAST_SUPPORTED_DEVICES, types.begin(), at::autocast::get_autocast_dtype);
  return types;
}
#endif

}  // namespace

// A thread's state as far as it can be compared: of what a fresh thread has none of, whether something is there.
struct CleanThreadState::Visible {
#ifdef TREADLE_THREAD_STATE_IS_KNOWN
  static bool isAll() { return c10::impl::PyInterpreterHooksRegistry()->Keys().empty(); }

  c10::impl::LocalDispatchKeySet keys = c10::impl::tls_local_dispatch_key_set();
  std::array<bool, 7> autograd = autogradState();
  std::array<bool, 3> recording = recordingState();
  std::array<bool, 6> functionModes = modes();
  std::array<bool, 5> others = otherState();
  decltype(autocastTypes()) autocast = autocastTypes();

  bool operator==(const Visible& other) const {
    return keys.included_ == other.keys.included_ && keys.excluded_ == other.keys.excluded_ &&
           autograd == other.autograd && recording == other.recording && functionModes == other.functionModes &&
           others == other.others && autocast == other.autocast;
  }
#else
  static bool isAll() { return false; }
  bool operator==(const Visible&) const = default;
#endif
};

CleanThreadState::CleanThreadState() : state_(inFreshThread([] { return at::ThreadLocalState(); })) {
  if (Visible::isAll()) visible_ = inFreshThread([] { return std::make_shared<const Visible>(); });
}

bool CleanThreadState::isThere() const { return visible_ && Visible() == *visible_; }

// libtorch has no comparison, and putting the state back copies containers of what is hardly ever there: with many
// small calls in flight it was a fifth of all that they cost.
void CleanThreadState::apply() const {
  if (!isThere()) at::ThreadLocalState::setThreadLocalState(state_);
}

}  // namespace treadle::bridge

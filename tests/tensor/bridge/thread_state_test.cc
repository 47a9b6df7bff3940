#include "treadle/tensor/bridge/thread_state.h"

#include <ATen/DTensorState.h>
#include <ATen/FuncTorchTLS.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/SavedTensorHooks.h>
#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>

#include <thread>

namespace treadle::test::thread_state_test {
namespace {

// One way in which a task may leave its thread another than it found it, without a guard.
struct Change {
  const char* name;
  void (*leave)();
  bool (*isThere)();
};

c10::AutogradState& autograd() { return c10::AutogradState::get_tls_state(); }
using TorchFunction = at::impl::PythonTorchFunctionTLS;
using DispatchModes = c10::impl::TorchDispatchModeTLS;

struct SomeTransform final : at::functorch::FuncTorchTLSBase {
  std::unique_ptr<FuncTorchTLSBase> deepcopy() const override { return std::make_unique<SomeTransform>(); }
  int64_t checkSupportsSingleLevelAutogradFunction() const override { return 0; }
  void checkSupportsCppAutogradFunction() const override {}
  void checkSupportsInplaceRequiresGrad() const override {}
  void checkSupportsRetainGrad() const override {}
};

const Change kChanges[] = {
    {"GradientsOff", [] { c10::GradMode::set_enabled(false); }, [] { return !c10::GradMode::is_enabled(); }},
    {"InferenceMode", [] { autograd().set_inference_mode(true); }, [] { return c10::InferenceMode::is_enabled(); }},
    {"ForwardGradientsOff", [] { autograd().set_fw_grad_mode(false); }, [] { return !autograd().get_fw_grad_mode(); }},
    {"OneThreadedBackward", [] { autograd().set_multithreading_enabled(false); },
     [] { return !autograd().get_multithreading_enabled(); }},
    {"ViewReplay", [] { autograd().set_view_replay_enabled(true); },
     [] { return autograd().get_view_replay_enabled(); }},
    {"AnyGradientLayout", [] { autograd().set_grad_layout_enforcement_enabled(false); },
     [] { return !autograd().get_grad_layout_enforcement_enabled(); }},
    {"Autocast", [] { at::autocast::set_autocast_enabled(at::kCPU, true); },
     [] { return at::autocast::is_autocast_enabled(at::kCPU); }},
    {"AutocastTypeOfCpu", [] { at::autocast::set_autocast_dtype(at::kCPU, at::kHalf); },
     [] { return at::autocast::get_autocast_dtype(at::kCPU) == at::kHalf; }},
    {"AutocastTypeOfCuda", [] { at::autocast::set_autocast_dtype(at::kCUDA, at::kBFloat16); },
     [] { return at::autocast::get_autocast_dtype(at::kCUDA) == at::kBFloat16; }},
    {"IncludedKey", [] { c10::impl::tls_set_dispatch_key_included(c10::DispatchKey::Tracer, true); },
     [] { return c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::Tracer); }},
    {"ExcludedKey", [] { c10::impl::tls_set_dispatch_key_excluded(c10::DispatchKey::AutogradCPU, true); },
     [] { return c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::AutogradCPU); }},
    {"RecordingOff", [] { at::enableRecordFunction(false); }, [] { return !at::isRecordFunctionEnabled(); }},
    {"RecordingCallback",
     [] {
       at::addThreadLocalCallback(at::RecordFunctionCallback(
           [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { return nullptr; }));
     },
     [] { return at::hasThreadLocalCallbacks(); }},
    {"DebugInfo",
     [] { c10::ThreadLocalDebugInfo::_push(c10::DebugInfoKind::TEST_INFO, std::make_shared<c10::DebugInfoBase>()); },
     [] { return c10::ThreadLocalDebugInfo::get(c10::DebugInfoKind::TEST_INFO) != nullptr; }},
    {"SavedTensorHooksOff", [] { at::SavedTensorDefaultHooks::disable("by a test"); },
     [] { return !at::SavedTensorDefaultHooks::is_enabled(); }},
    {"SavedTensorHooksTracing", [] { at::SavedTensorDefaultHooks::set_tracing(true); },
     [] { return at::SavedTensorDefaultHooks::get_tls_state().is_tracing; }},
    {"ReappliedViews", [] { at::functionalization::impl::setFunctionalizationReapplyViewsTLS(true); },
     [] { return at::functionalization::impl::getFunctionalizationReapplyViewsTLS(); }},
    {"ImplicitReplication", [] { at::set_dtensor_allow_implicit_replication(true); },
     [] { return at::get_dtensor_allow_implicit_replication(); }},
    {"TorchFunctionOff", [] { TorchFunction::set_disabled_state(at::impl::TorchFunctionDisabledState::ALL_DISABLED); },
     [] { return TorchFunction::get_disabled_state() != at::impl::TorchFunctionDisabledState::ENABLED; }},
    {"TorchFunctionSkipped", [] { TorchFunction::exchange_skip_next(true); },
     [] { return TorchFunction::peek_skip_next(); }},
    {"TorchFunctionMode", [] { TorchFunction::push_onto_stack(nullptr); },
     [] { return TorchFunction::stack_len() > 0; }},
    {"DispatchMode", [] { DispatchModes::push_non_infra_mode_onto_stack(nullptr); },
     [] { return DispatchModes::any_modes_set(); }},
    {"GroupOfGraphs", [] { autograd().set_graph_exec_group(c10::SafePyObject(nullptr, nullptr)); },
     [] { return autograd().get_graph_exec_group().has_value(); }},
    {"FunctionTransform", [] { at::functorch::functorchTLSAccessor() = std::make_unique<SomeTransform>(); },
     [] { return at::functorch::functorchTLSAccessor() != nullptr; }},
};

class ThreadStateAfter : public testing::TestWithParam<Change> {};

// On a thread of its own: what is not put back must not meet the tests that follow.
TEST_P(ThreadStateAfter, IsThatOfAFreshThread) {
  const bridge::CleanThreadState clean;
  const Change& change = GetParam();
  std::thread([&] {
    EXPECT_TRUE(clean.isThere());
    EXPECT_FALSE(change.isThere());
    change.leave();
    EXPECT_FALSE(clean.isThere());
    EXPECT_TRUE(change.isThere());
    clean.apply();
    EXPECT_TRUE(clean.isThere());
    EXPECT_FALSE(change.isThere());
  }).join();
}

TEST_P(ThreadStateAfter, IsBackBehindAScope) {
  const bridge::CleanThreadState clean;
  const Change& change = GetParam();
  std::thread([&] {
    change.leave();
    {
      const bridge::CleanThreadState::Scope scope(clean);
      EXPECT_TRUE(clean.isThere());
      EXPECT_FALSE(change.isThere());
    }
    EXPECT_TRUE(change.isThere());
    clean.apply();  // some of it is not to be there when the thread ends
  }).join();
}

INSTANTIATE_TEST_SUITE_P(Changes, ThreadStateAfter, testing::ValuesIn(kChanges),
                         [](const auto& info) { return info.param.name; });

// The state is that of a fresh thread, not of whoever made it.
TEST(CleanThreadState, IsNotItsMakers) {
  std::thread([] {
    c10::GradMode::set_enabled(false);
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    const bridge::CleanThreadState clean;
    clean.apply();
    EXPECT_TRUE(c10::GradMode::is_enabled());
    EXPECT_EQ(at::kBFloat16, at::autocast::get_autocast_dtype(at::kCPU));
  }).join();
}

}  // namespace
}  // namespace treadle::test::thread_state_test

#include "treadle/train/ddp/thread_generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace treadle::ddp {
namespace {

// Note [Random operators]
// libtorch has no generator of a thread, but its dispatcher has keys that a thread turns on, and an operator can be
// given a function for such a key. Vmap handles random operators in that way. Each operator with an argument
// `Generator?` gets a function that puts the thread's generator there and goes on. All other operators skip the key, so
// they cost nothing. A factory such as at::rand has no tensor yet, so it goes on as it is and comes to an operator in
// place, which has one.
//
// The key is one that libtorch leaves to others: it registers nothing for it. It was meant for torchdistx, which is not
// developed any more.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;

thread_local const at::Generator* current = nullptr;

bool isGenerator(const c10::Argument& argument) {
  const auto* optional = argument.type()->castRaw<c10::OptionalType>();
  return optional != nullptr && optional->getElementType()->kind() == c10::TypeKind::GeneratorType;
}

void giveGenerator(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const std::vector<c10::Argument>& arguments = op.schema().arguments();
  if (current != nullptr && keys.has_backend(c10::BackendComponent::CPUBit))
    for (size_t i = 0; i < arguments.size(); ++i) {
      c10::IValue& value = (*stack)[stack->size() - arguments.size() + i];
      if (isGenerator(arguments[i]) && value.isNone()) value = *current;
    }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kKey), stack);
}

std::vector<c10::RegistrationHandleRAII> handleRandomOperators() {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  std::vector<c10::RegistrationHandleRAII> handles;
  handles.push_back(dispatcher.registerFallback(kKey, c10::KernelFunction::makeFallthrough(), "treadle"));
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const std::optional<c10::OperatorHandle> op = dispatcher.findSchema(name);
    if (!op || !std::ranges::any_of(op->schema().arguments(), isGenerator)) continue;
    handles.push_back(dispatcher.registerImpl(name, kKey, c10::KernelFunction::makeFromBoxedFunction<&giveGenerator>(),
                                              std::nullopt, nullptr, "treadle"));
  }
  return handles;
}

// Once for the process, as the dispatcher is; never taken back, because threads may be in these functions.
void handleRandomOperatorsOnce() {
  [[maybe_unused]] static const auto* const handles =
      std::make_unique<std::vector<c10::RegistrationHandleRAII>>(handleRandomOperators()).release();
}

at::Generator makeGenerator(uint64_t seed) {
  handleRandomOperatorsOnce();
  return at::make_generator<at::CPUGeneratorImpl>(seed);
}

}  // namespace

ThreadGenerator::ThreadGenerator(uint64_t seed)
    : generator_(makeGenerator(seed)),
      before_(std::exchange(current, &generator_)),
      wasOn_(c10::impl::tls_is_dispatch_key_included(kKey)) {
  c10::impl::tls_set_dispatch_key_included(kKey, true);
}

ThreadGenerator::~ThreadGenerator() {
  c10::impl::tls_set_dispatch_key_included(kKey, wasOn_);
  current = before_;
}

}  // namespace treadle::ddp

#pragma once
// A callable that is held once and may hold what cannot be copied (C++23's std::move_only_function, which C++20 has
// not). Making one is one allocation, moving one none. Calling an empty or moved-from one is a
// defect. One thread at a time.

#include <memory>
#include <type_traits>
#include <utility>

#include "treadle/core/base/check.h"

namespace treadle {

template <class Signature>
class UniqueFunction;

template <class R, class... Args>
class UniqueFunction<R(Args...)> {
 public:
  UniqueFunction() = default;
  template <class F>
    requires(!std::is_same_v<std::decay_t<F>, UniqueFunction> && std::is_invocable_r_v<R, std::decay_t<F>&, Args...>)
  UniqueFunction(F&& callable)  // NOLINT: implicit, as std::function is
      : callable_(std::make_unique<Holder<std::decay_t<F>>>(std::forward<F>(callable))) {}

  explicit operator bool() const { return callable_ != nullptr; }

  R operator()(Args... args) {
    TREADLE_CHECK(callable_ != nullptr, "an empty UniqueFunction was called");
    return callable_->invoke(std::forward<Args>(args)...);
  }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual R invoke(Args... args) = 0;
  };
  template <class F>
  struct Holder final : Base {
    explicit Holder(F callable) : callable_(std::move(callable)) {}
    R invoke(Args... args) override { return callable_(std::forward<Args>(args)...); }
    F callable_;
  };

  std::unique_ptr<Base> callable_;
};

}  // namespace treadle

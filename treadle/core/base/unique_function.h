#pragma once
// A callable that is held once and may hold what cannot be copied (C++23's std::move_only_function, which C++20 has
// not). One of up to 48 bytes lies within, as those of a call do; a larger one costs an allocation. Calling an empty or
// moved-from one is a defect, and so is moving one while it runs. One thread at a time.

#include <cstddef>
#include <memory>
#include <new>
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
  {
    using Callable = std::decay_t<F>;
    if constexpr (kFits<Callable>) {
      put<Callable>(std::forward<F>(callable));
    } else {
      put<Boxed<Callable>>(std::make_unique<Callable>(std::forward<F>(callable)));
    }
  }
  UniqueFunction(UniqueFunction&& other) noexcept { takeFrom(other); }
  UniqueFunction& operator=(UniqueFunction&& other) noexcept {
    if (this == &other) return *this;
    // What was held may come back here while it goes.
    UniqueFunction before(std::move(*this));
    takeFrom(other);
    return *this;
  }
  ~UniqueFunction() { drop(); }

  explicit operator bool() const { return kind_ != nullptr; }

  R operator()(Args... args) {
    TREADLE_CHECK(kind_ != nullptr, "an empty UniqueFunction was called");
    return kind_->invoke(bytes_, std::forward<Args>(args)...);
  }

 private:
  static constexpr size_t kBytes = 48;
  template <class F>
  static constexpr bool kFits =
      sizeof(F) <= kBytes && alignof(F) <= alignof(std::max_align_t) && std::is_nothrow_move_constructible_v<F>;

  template <class F>
  struct Boxed {
    Boxed(std::unique_ptr<F> callable) : callable(std::move(callable)) {}  // NOLINT: implicit
    R operator()(Args... args) { return (*callable)(std::forward<Args>(args)...); }
    std::unique_ptr<F> callable;
  };

  // What can be done with a callable of one type.
  struct Kind {
    R (*invoke)(std::byte* at, Args&&... args);
    void (*move)(std::byte* from, std::byte* to) noexcept;  // and destroys what is left of it
    void (*destroy)(std::byte* at) noexcept;
  };
  template <class F>
  static F* held(std::byte* at) {
    return std::launder(reinterpret_cast<F*>(at));
  }
  template <class F>
  static constexpr Kind kKindOf = {
      [](std::byte* at, Args&&... args) -> R { return static_cast<R>((*held<F>(at))(std::forward<Args>(args)...)); },
      [](std::byte* from, std::byte* to) noexcept {
        std::construct_at(reinterpret_cast<F*>(to), std::move(*held<F>(from)));
        std::destroy_at(held<F>(from));
      },
      [](std::byte* at) noexcept { std::destroy_at(held<F>(at)); }};

  template <class F, class From>
  void put(From&& from) {
    std::construct_at(reinterpret_cast<F*>(bytes_), std::forward<From>(from));
    kind_ = &kKindOf<F>;
  }
  // This one is empty.
  void takeFrom(UniqueFunction& other) noexcept {
    kind_ = std::exchange(other.kind_, nullptr);
    if (kind_ != nullptr) kind_->move(other.bytes_, bytes_);
  }
  void drop() noexcept {
    if (const Kind* kind = std::exchange(kind_, nullptr)) kind->destroy(bytes_);
  }

  const Kind* kind_ = nullptr;
  alignas(std::max_align_t) std::byte bytes_[kBytes];
};

}  // namespace treadle

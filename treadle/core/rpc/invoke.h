#pragma once
// From bytes to a C++ call and back: what a function's type says about its arguments and result, its signature as
// text, and the code that decodes the arguments, calls, and answers. Only templates over function types; the rest of
// the room sees them as an `Invoker`.

#include <tuple>
#include <typeinfo>

#include "treadle/core/base/unique_function.h"
#include "treadle/core/io/task.h"
#include "treadle/core/rpc/call.h"
#include "treadle/core/rpc/codec.h"
#include "treadle/core/rpc/loose.h"

namespace treadle::rpc {

// Decodes the arguments, calls the function and answers through the responder. Throws what the function throws before
// it has answered.
using Invoker = void (*)(CallContext&, Decoder&, const Responder&);

// ---- what a function's type says

template <class Class, class R, class... A>
struct Shape {
  using Target = Class;  // void for a function without an object
  using Result = R;
  using Arguments = std::tuple<A...>;
};

// clang-format off
template <class F> struct ShapeOf {
  static_assert(!std::is_same_v<F, F>, "this is no function that can be called remotely: give &function, &Class::method "
                                       "or +[](...) {...}; pick one overload with a cast");
};
template <class R, class... A> struct ShapeOf<R (*)(A...)> : Shape<void, R, A...> {};
template <class R, class... A> struct ShapeOf<R (*)(A...) noexcept> : Shape<void, R, A...> {};
template <class C, class R, class... A> struct ShapeOf<R (C::*)(A...)> : Shape<C, R, A...> {};
template <class C, class R, class... A> struct ShapeOf<R (C::*)(A...) const> : Shape<C, R, A...> {};
template <class C, class R, class... A> struct ShapeOf<R (C::*)(A...) noexcept> : Shape<C, R, A...> {};
template <class C, class R, class... A> struct ShapeOf<R (C::*)(A...) const noexcept> : Shape<C, R, A...> {};
template <class C, class R, class... A> struct ShapeOf<R (C::*)(A...) &> : Shape<C, R, A...> {};
template <class C, class R, class... A> struct ShapeOf<R (C::*)(A...) const&> : Shape<C, R, A...> {};
template <class C, class R, class... A> struct ShapeOf<R (C::*)(A...) & noexcept> : Shape<C, R, A...> {};
template <class C, class R, class... A> struct ShapeOf<R (C::*)(A...) const& noexcept> : Shape<C, R, A...> {};
// clang-format on

// Parameters as they travel: without `CallContext&` in front, decayed.
template <class Tuple>
struct Travelling;
template <class... A>
struct Travelling<std::tuple<A...>> {
  using Values = std::tuple<std::decay_t<A>...>;
  static constexpr bool takesCall = false;
};
template <class... A>
struct Travelling<std::tuple<CallContext&, A...>> {
  using Values = std::tuple<std::decay_t<A>...>;
  static constexpr bool takesCall = true;
};

// The result of a function that works on after its answer is known. A known answer leaves before `then` runs, unless
// calls of the function are usually short. What `then` throws is the answer if none has left.
template <class R>
struct AnswerThen {
  Future<R> answer;
  UniqueFunction<void()> then;  // may be empty
};

template <class R>
constexpr bool kIsAnswerThen = false;
template <class R>
constexpr bool kIsAnswerThen<AnswerThen<R>> = true;

// The R of a Future<R>, Task<R> or AnswerThen<R>: what the caller gets.
template <class R>
struct Awaited {
  using Type = R;
};
template <class R>
struct Awaited<Future<R>> {
  using Type = R;
};
template <class R>
struct Awaited<Task<R>> {
  using Type = R;
};

template <class R>
struct Awaited<AnswerThen<R>> {
  using Type = R;
};

template <auto F>
struct Traits {
  using Shape = ShapeOf<decltype(F)>;
  using Target = typename Shape::Target;
  using Values = typename Travelling<typename Shape::Arguments>::Values;
  using Returned = std::decay_t<typename Shape::Result>;
  using Result = typename Awaited<Returned>::Type;
  static constexpr bool takesCall = Travelling<typename Shape::Arguments>::takesCall;
  static constexpr bool isMember = !std::is_void_v<Target>;
  static constexpr bool isTask = io::kIsTask<Returned>;
};

// Stands for function F, or type T, as the address of an object.
//
// Note [Of]: classes of the same name in the unnamed namespaces of two source files are two classes, and so are their
// member functions; yet g++ 12 makes one of the two instantiations of a template over such a member function. It does
// not for one over the class, so what is instantiated for each function has its class as a parameter too.
template <auto F, class Of = typename Traits<F>::Target>
inline char functionKey = 0;
template <class T>
inline char typeKey = 0;

// ---- signatures

// The codec's name for types that travel, the C++ name for those that stay with their owner.
template <class T>
std::string nameOf() {
  if constexpr (Travels<Stored<T>>) {
    return Codec<Stored<T>>::name();
  } else {
    return demangled(typeid(T).name());
  }
}

template <class Tuple>
struct NamesIn;
template <class... A>
struct NamesIn<std::tuple<A...>> {
  static std::string text() { return namesOf<A...>(); }
};

template <auto F, class Of = typename Traits<F>::Target>  // Note [Of]
struct Signature {
  static std::string text() {
    using T = Traits<F>;
    std::string object;
    if constexpr (T::isMember) object = demangled(typeid(typename T::Target).name()) + "::";
    return nameOf<typename T::Result>() + " " + object + "(" + NamesIn<typename T::Values>::text() + ")";
  }
};

template <class T, class... Args>
std::string makerSignature() {
  return demangled(typeid(T).name()) + " made from (" + namesOf<Loose<Args>...>() + ")";
}

// FNV-1a with 64 bits (Fowler, Noll, Vo): it tells builds that differ from each other, and is no protection against
// somebody who looks for another signature of the same hash.
uint64_t signatureHash(std::string_view signature);

// ---- calling

template <class T>
OwnedValue ownedValue(std::shared_ptr<T> value) {
  OwnedValue owned{value, &typeid(T), nullptr};
  if constexpr (Travels<T>)
    owned.encode = [](Encoder& encoder, const void* held) { Codec<T>::encode(encoder, *static_cast<const T*>(held)); };
  return owned;
}

// Answers with `value`, or keeps it here when the caller asked for a reference.
template <class T>
void answer(const Responder& responder, T value) {
  if (responder.wantsReference()) return responder.keep(ownedValue(std::make_shared<T>(std::move(value))));
  if constexpr (Travels<T>) {
    responder.reply([&](Encoder& encoder) {
      Encoder::Giving giving(encoder, kOwnsAll<T>);
      Codec<T>::encode(encoder, value);
    });
  } else {
    responder.fail(invalidArgument("a result of type " + demangled(typeid(T).name()) +
                                   " does not travel; call with remote() to get a reference to it"));
  }
}

// Answers with what is in `result`, which others may have too: then with a copy, if there can be one.
template <class R>
void answerFrom(const Responder& responder, Result<Stored<R>>& result, bool ours) {
  if (!result.ok()) return responder.fail(result.status());
  if constexpr (io::kCopyable<R>) {
    if (!ours) return answer(responder, Stored<R>(*result));
  }
  answer(responder, std::move(*result));
}

// Whoever completes the future may do so when this worker is no more. `ours`: nobody else has the future.
template <class R>
void answerWhenReady(const Responder& responder, Future<R> future, bool ours) {
  auto state = sharedStateOf(future);
  if (!state) raise(failedPrecondition("the function returned an empty Future"));
  future = {};
  auto& core = *state;
  core.onReady([state = std::move(state), responder, pool = responder.pool(), ours]() mutable {
    pool.post([state = std::move(state), responder, ours] {
      const bool sole = ours || state.use_count() == 1;
      const auto another = state;  // an acquire, which counting is none: what others did to the value is done
      try {
        answerFrom<R>(responder, state->result(), sole);
      } catch (...) {
        responder.fail(statusOfCurrentException(responder.call().function));
      }
    });
  });
}

// Sending an answer delays `then`. This is a few times that delay.
constexpr Duration kShortRun = std::chrono::microseconds(50);

// The thread sends an answer that is known by itself, which saves waking another one.
template <class R>
void answerAndThen(const Responder& responder, AnswerThen<R> returned) {
  const bool isKnown = returned.answer.ready();
  const Duration usual = responder.call().usualRunTime;
  const bool isFirst = isKnown && (usual == Duration::zero() || usual > kShortRun);
  const auto answerNow = [&] { answerFrom<R>(responder, sharedStateOf(returned.answer)->result(), false); };
  if (isFirst) answerNow();
  if (!isKnown) answerWhenReady(responder, std::move(returned.answer), false);
  if (returned.then) returned.then();
  if (isKnown && !isFirst) answerNow();
}

template <class R, class Invoke>
void callAndAnswer(const Responder& responder, Invoke&& invoke) {
  if constexpr (std::is_void_v<R>) {
    invoke();
    answer(responder, Unit{});
  } else if constexpr (kIsAnswerThen<R>) {
    answerAndThen(responder, invoke());
  } else if constexpr (!std::is_same_v<typename Awaited<R>::Type, R>) {
    answerWhenReady(responder, invoke(), false);
  } else {
    answer(responder, R(invoke()));
  }
}

// The parameters' values, from left to right: each from the message, or from the input that stands for it.
template <class Values>
Values decodeArguments(Decoder& decoder, std::vector<Input>& inputs) {
  auto input = inputs.begin();
  [[maybe_unused]] auto one = [&]<class T>(size_t index, std::type_identity<T>) {
    return input != inputs.end() && input->index == index ? takeInput<T>(*input++) : Codec<T>::decode(decoder);
  };
  // Braces: they, unlike parentheses, evaluate from left to right.
  Values values = [&]<class... T, size_t... I>(std::type_identity<std::tuple<T...>>, std::index_sequence<I...>) {
    return Values{one(I, std::type_identity<T>{})...};
  }(std::type_identity<Values>{}, std::make_index_sequence<std::tuple_size_v<Values>>{});
  if (input != inputs.end()) raise(dataLoss("a request gives an argument by reference that the function has not"));
  decoder.finish();
  return values;
}

// The object of a member call. StateError when the reference is to something of another type.
template <class T>
T& targetOf(const IncomingCall& call) {
  if (call.target.type == nullptr || *call.target.type != typeid(T))
    raise(failedPrecondition("the reference is to a " +
                             (call.target.type ? demangled(call.target.type->name()) : std::string("nothing")) +
                             ", not to a " + demangled(typeid(T).name())));
  return *static_cast<T*>(call.target.value.get());
}

// Calls F, a member function on the call's object, with these arguments. A parameter that is a reference refers to what
// is in `values`.
template <auto F, class Of = typename Traits<F>::Target>  // Note [Of]
decltype(auto) applyFunction(const IncomingCall& incoming, CallContext& call, typename Traits<F>::Values& values) {
  using T = Traits<F>;
  auto run = [&](auto&... value) -> decltype(auto) {
    if constexpr (T::isMember && T::takesCall) {
      return (targetOf<typename T::Target>(incoming).*F)(call, std::move(value)...);
    } else if constexpr (T::isMember) {
      return (targetOf<typename T::Target>(incoming).*F)(std::move(value)...);
    } else if constexpr (T::takesCall) {
      return F(call, std::move(value)...);
    } else {
      return F(std::move(value)...);
    }
  };
  return std::apply(run, values);
}

// What the parameters of a coroutine refer to, for as long as it runs.
template <class Values>
struct TaskArguments {
  CallContext call;
  Values values;
};

// Runs its first stretch here, the others in the pool; the caller's giving up cancels it.
template <auto F, class Of = typename Traits<F>::Target>  // Note [Of]
void runTask(const CallContext& call, typename Traits<F>::Values values, const Responder& responder) {
  auto held = std::make_shared<TaskArguments<typename Traits<F>::Values>>(call, std::move(values));
  auto task = io::makeReady(applyFunction<F>(responder.call(), held->call, held->values), responder.pool(),
                            responder.stretches(), held);
  responder.call().cancellation.whenRequested([weak = std::weak_ptr(task.run)] {
    if (auto alive = weak.lock()) alive->cancel();
  });
  answerWhenReady(responder, task.future, true);
  task.run->begin();
}

template <auto F, class Of = typename Traits<F>::Target>  // Note [Of]
void invokeFunction(CallContext& call, Decoder& decoder, const Responder& responder) {
  using T = Traits<F>;
  std::vector<Input>& inputs = responder.call().inputs;
  if constexpr (T::isTask) {
    runTask<F>(call, decodeArguments<typename T::Values>(decoder, inputs), responder);
  } else {
    // The arguments go before the answer does: then a result that is one of them is held by nobody else any more.
    callAndAnswer<typename T::Returned>(responder, [&]() -> typename T::Returned {
      auto values = decodeArguments<typename T::Values>(decoder, inputs);
      return applyFunction<F>(responder.call(), call, values);
    });
  }
}

template <class T, class... Args>
void invokeMaker(CallContext&, Decoder& decoder, const Responder& responder) {
  auto values = decodeArguments<std::tuple<Loose<Args>...>>(decoder, responder.call().inputs);
  auto make = [](auto&... value) { return std::make_shared<T>(tighten<Args>(std::move(value))...); };
  auto made = std::apply(make, values);
  responder.keep(ownedValue(std::move(made)));
}

}  // namespace treadle::rpc

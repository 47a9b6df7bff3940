#pragma once
// Arguments that come as references: what the engine found for them, here or at their owners, and how it becomes the
// value of a parameter. Of the thread that runs the handler.

#include <memory>
#include <string>

#include "treadle/core/rpc/codec.h"
#include "treadle/core/rpc/references.h"

namespace treadle::rpc {

// One of them, for the parameter of this index: the value, which lives here, or the owner's answer to a fetch of it.
struct Input {
  uint16_t index = 0;
  OwnedValue value = {};
  std::unique_ptr<Decoder> fetched = {};
};

// FailedPrecondition when `value` is not a `type`.
Status typeFits(const OwnedValue& value, const std::type_info& type);

// What the answer to a fetch carries. StateError when the reference is to something of another type.
template <class T>
T decodeFetched(Decoder& decoder) {
  std::string type = Codec<std::string>::decode(decoder);
  if (std::string mine = demangled(typeid(T).name()); type != mine)
    raise(failedPrecondition("the reference is to a " + type + ", not to a " + mine));
  return Codec<T>::decode(decoder);
}

// As io::kCopyable, also of structs that are described by their fields.
template <class T>
constexpr bool canBeCopied() {
  if constexpr (HasFields<T>) {
    return []<class... F>(std::type_identity<std::tuple<F...>>) {
      return (canBeCopied<std::decay_t<F>>() && ...);
    }(std::type_identity<decltype(fields(std::declval<T&>()))>{}) &&
           io::kCopyable<T>;
  } else {
    return io::kCopyable<T>;
  }
}

template <class T>
T takeInput(Input& input) {
  if (input.fetched) {
    T value = decodeFetched<T>(*input.fetched);
    input.fetched->finish();
    return value;
  }
  throwIfError(typeFits(input.value, typeid(T)));
  if constexpr (canBeCopied<T>()) {
    return *static_cast<const T*>(input.value.value.get());
  } else {
    raise(failedPrecondition("a " + demangled(typeid(T).name()) +
                             " cannot be copied: let the function take a reference to it"));
  }
}

}  // namespace treadle::rpc

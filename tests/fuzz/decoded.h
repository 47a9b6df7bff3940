#pragma once
// Values out of messages that may be anything.

#include <optional>

#include "treadle/core/base/error.h"
#include "treadle/core/rpc/codec.h"

namespace treadle::fuzz {

// Nothing when the message is refused, in the one way in which it may be.
template <class T>
std::optional<T> decoded(rpc::Decoder decoder) {
  try {
    std::optional<T> value(rpc::Codec<T>::decode(decoder));
    decoder.finish();
    return value;
  } catch (const DataError&) {
    return std::nullopt;
  }
}

}  // namespace treadle::fuzz

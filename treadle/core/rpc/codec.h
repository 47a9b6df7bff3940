#pragma once
// How a value of type T travels: `Codec<T>` writes it, reads it, and names its type for the signature that caller and
// callee compare. This file has the codecs of numbers, text, containers and structs described by TREADLE_FIELDS. The
// codec of tensors is in tensor/bridge, that of remote references in rref.h. A type without a codec does not travel.
//
// Readers trust nothing: the rest of the message bounds every length, and malformed bytes throw DataError.

#include <array>
#include <concepts>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "treadle/core/io/future.h"
#include "treadle/core/rpc/coder.h"

namespace treadle::rpc {

template <class T>
struct Codec;

// Types that have a codec. A library may specialise Codec for its own types: `encode` writes any bytes; `decode` reads
// exactly those and throws DataError through Decoder::check when they are missing; `name` is the same text in all
// programs that exchange the type, and changes with the layout.
template <class T>
concept Travels = requires(Encoder& encoder, Decoder& decoder, const T& value) {
  Codec<T>::encode(encoder, value);
  { Codec<T>::decode(decoder) } -> std::same_as<T>;
  { Codec<T>::name() } -> std::convertible_to<std::string>;
};

using io::Stored;
using io::Unit;

// Whether the codec of T writes only what the T itself owns. Then memory may go with a T that is given away
// (Encoder::Giving). Codecs that may reach through pointers keep the default, false.
template <class T>
inline constexpr bool kOwnsAll = std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string>;
template <class T>
inline constexpr bool kOwnsAll<std::vector<T>> = kOwnsAll<T>;
template <class T>
inline constexpr bool kOwnsAll<std::optional<T>> = kOwnsAll<T>;
template <class K, class T>
inline constexpr bool kOwnsAll<std::map<K, T>> = kOwnsAll<K> && kOwnsAll<T>;
template <class A, class B>
inline constexpr bool kOwnsAll<std::pair<A, B>> = kOwnsAll<A> && kOwnsAll<B>;
template <class... T>
inline constexpr bool kOwnsAll<std::tuple<T...>> = (kOwnsAll<T> && ...);

template <>
struct Codec<Unit> {
  static void encode(Encoder&, const Unit&) {}
  static Unit decode(Decoder&) { return {}; }
  static std::string name() { return "void"; }
};

template <>
struct Codec<bool> {
  static void encode(Encoder& encoder, bool value) { encoder.writer().number(static_cast<uint8_t>(value)); }
  static bool decode(Decoder& decoder) {
    bool value = decoder.reader().boolean();
    return decoder.check(), value;
  }
  static std::string name() { return "bool"; }
};

template <class T>
  requires((std::integral<T> && !std::same_as<T, bool>) || std::floating_point<T>)
struct Codec<T> {
  static_assert(sizeof(T) <= 8, "long double has no fixed layout; send a double");
  static void encode(Encoder& encoder, T value) { encoder.writer().number(value); }
  static T decode(Decoder& decoder) {
    T value = decoder.reader().template number<T>();
    return decoder.check(), value;
  }
  // Named by width and kind: `long` and `long long` are one type on the wire.
  static std::string name() {
    const char* kind = std::floating_point<T> ? "f" : std::signed_integral<T> ? "i" : "u";
    return kind + std::to_string(8 * sizeof(T));
  }
};

template <class T>
  requires std::is_enum_v<T>
struct Codec<T> {
  using Number = std::underlying_type_t<T>;
  static void encode(Encoder& encoder, T value) { Codec<Number>::encode(encoder, static_cast<Number>(value)); }
  static T decode(Decoder& decoder) { return static_cast<T>(Codec<Number>::decode(decoder)); }
  static std::string name() { return "enum:" + Codec<Number>::name(); }
};

// Lengths are uint32 on the wire. ArgumentError for larger ones.
inline uint32_t checkedCount(size_t count) {
  if (count > UINT32_MAX)
    raise(invalidArgument(std::to_string(count) + " elements or bytes are too many to travel in one value"));
  return static_cast<uint32_t>(count);
}

template <>
struct Codec<std::string> {
  static void encode(Encoder& encoder, const std::string& value) {
    checkedCount(value.size());
    encoder.writer().string(value);
  }
  static std::string decode(Decoder& decoder) {
    std::string value = decoder.reader().string(decoder.reader().left());
    return decoder.check(), value;
  }
  static std::string name() { return "string"; }
};

// The number of elements that follow. Each takes at least one byte, except types without content. Containers reject
// those: otherwise a count alone could request any amount of memory.
inline size_t decodeCount(Decoder& decoder) {
  size_t count = decoder.reader().count(1);
  return decoder.check(), count;
}

template <class T>
  requires Travels<T>
struct Codec<std::vector<T>> {
  static_assert(!std::same_as<T, Unit>, "a container of nothing does not travel");
  static void encode(Encoder& encoder, const std::vector<T>& values) {
    encoder.writer().number(checkedCount(values.size()));
    for (const T& value : values) Codec<T>::encode(encoder, value);
  }
  static std::vector<T> decode(Decoder& decoder) {
    std::vector<T> values;
    for (size_t left = decodeCount(decoder); left > 0; --left) values.push_back(Codec<T>::decode(decoder));
    return values;
  }
  static std::string name() { return "vector<" + Codec<T>::name() + ">"; }
};

template <class K, class V>
  requires Travels<K> && Travels<V>
struct Codec<std::map<K, V>> {
  static void encode(Encoder& encoder, const std::map<K, V>& values) {
    encoder.writer().number(checkedCount(values.size()));
    for (const auto& [key, value] : values) {
      Codec<K>::encode(encoder, key);
      Codec<V>::encode(encoder, value);
    }
  }
  static std::map<K, V> decode(Decoder& decoder) {
    std::map<K, V> values;
    for (size_t left = decodeCount(decoder); left > 0; --left) {
      K key = Codec<K>::decode(decoder);
      values.insert_or_assign(std::move(key), Codec<V>::decode(decoder));
    }
    return values;
  }
  static std::string name() { return "map<" + Codec<K>::name() + "," + Codec<V>::name() + ">"; }
};

template <class T>
  requires Travels<T>
struct Codec<std::optional<T>> {
  static void encode(Encoder& encoder, const std::optional<T>& value) {
    Codec<bool>::encode(encoder, value.has_value());
    if (value) Codec<T>::encode(encoder, *value);
  }
  static std::optional<T> decode(Decoder& decoder) {
    if (!Codec<bool>::decode(decoder)) return std::nullopt;
    return Codec<T>::decode(decoder);
  }
  static std::string name() { return "optional<" + Codec<T>::name() + ">"; }
};

// The names of the types T..., with commas between them.
template <class... T>
std::string namesOf() {
  std::string names;
  ((names += (names.empty() ? "" : ",") + Codec<T>::name()), ...);
  return names;
}

template <class... T>
  requires(Travels<T> && ...)
struct Codec<std::tuple<T...>> {
  static void encode(Encoder& encoder, const std::tuple<T...>& values) {
    std::apply([&](const T&... value) { (Codec<T>::encode(encoder, value), ...); }, values);
  }
  // Braces evaluate from left to right; parentheses do not.
  static std::tuple<T...> decode(Decoder& decoder) { return std::tuple<T...>{Codec<T>::decode(decoder)...}; }
  static std::string name() { return "tuple<" + namesOf<T...>() + ">"; }
};

template <class A, class B>
  requires Travels<A> && Travels<B>
struct Codec<std::pair<A, B>> {
  static void encode(Encoder& encoder, const std::pair<A, B>& value) {
    Codec<A>::encode(encoder, value.first);
    Codec<B>::encode(encoder, value.second);
  }
  static std::pair<A, B> decode(Decoder& decoder) {
    A first = Codec<A>::decode(decoder);
    return {std::move(first), Codec<B>::decode(decoder)};
  }
  static std::string name() { return "pair<" + Codec<A>::name() + "," + Codec<B>::name() + ">"; }
};

// Structs with a free function `fields(T&)` that returns a std::tie of their members.
template <class T>
concept HasFields = std::default_initializable<T> && requires(T& value) { fields(value); };

template <HasFields T>
struct Codec<T> {
  static void encode(Encoder& encoder, const T& value) {
    std::apply([&](auto&... field) { (Codec<std::decay_t<decltype(field)>>::encode(encoder, field), ...); },
               fields(const_cast<T&>(value)));  // only read
  }
  static T decode(Decoder& decoder) {
    T value{};
    std::apply([&](auto&... field) { ((field = Codec<std::decay_t<decltype(field)>>::decode(decoder)), ...); },
               fields(value));
    return value;
  }
  static std::string name() { return named(static_cast<decltype(fields(std::declval<T&>()))*>(nullptr)); }

 private:
  template <class... F>
  static std::string named(std::tuple<F...>*) {
    return "struct{" + namesOf<std::decay_t<F>...>() + "}";
  }
};

}  // namespace treadle::rpc

// Makes your struct travel: name all its members, in the order of their declaration, in the namespace of the struct. A
// missing member is a compile error.
#define TREADLE_FIELDS(Type, ...)    \
  inline auto fields(Type& object) { \
    auto& [__VA_ARGS__] = object;    \
    return std::tie(__VA_ARGS__);    \
  }

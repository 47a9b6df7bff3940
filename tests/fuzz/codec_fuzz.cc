// Values of each kind that travels (rpc/codec.h, loose.h, rref.h). The first byte says which type the bytes are read
// as.

#include <limits>
#include <set>

#include "tests/fuzz/decoded.h"
#include "tests/fuzz/fuzzer.h"
#include "treadle/core/rpc/loose.h"
#include "treadle/core/rpc/rref.h"

namespace treadle::fuzz {

enum class Colour : uint16_t { kRed, kBlue };

struct Point {
  double x = 0, y = 0;
  std::optional<std::string> label;
};
TREADLE_FIELDS(Point, x, y, label)

struct Figure {
  std::string name;
  std::vector<Point> points;
  std::map<std::string, std::vector<int32_t>> groups;
  Colour colour = Colour::kRed;
};
TREADLE_FIELDS(Figure, name, points, groups, colour)

namespace {

using rpc::References;

// Two references come with each message.
struct Coding {
  std::shared_ptr<References> references =
      std::make_shared<References>(0, [](int, rpc::RefNotice, const rpc::ForkEntry&) {});
  std::vector<rpc::HandlePtr> handles = {references->own({std::make_shared<int>(1), &typeid(int), nullptr}),
                                         references->own({std::make_shared<int>(2), &typeid(int), nullptr})};

  template <class T>
  std::optional<T> decode(Bytes bytes) {
    return decoded<T>({*references, {bytes.begin(), bytes.end()}, 0, {}, handles, nullptr});
  }
  template <class T>
  std::vector<std::byte> encode(const T& value) {
    rpc::Encoder encoder(*references, 1, nullptr);
    rpc::Codec<T>::encode(encoder, value);
    return encoder.writer().take();
  }
};

// A map may come unsorted and with a key twice; a reference has the number that the message gives it.
template <class T>
constexpr bool kOneWayToWrite = true;
template <class K, class V>
constexpr bool kOneWayToWrite<std::map<K, V>> = false;
template <>
constexpr bool kOneWayToWrite<Figure> = false;
template <class T>
constexpr bool kOneWayToWrite<std::vector<T>> = kOneWayToWrite<T>;
template <class T>
constexpr bool kOneWayToWrite<RRef<T>> = false;

template <class T>
void check(Bytes input) {
  Coding coding;
  std::optional<T> value = coding.decode<T>(input);
  if (!value) return;
  std::vector<std::byte> written = coding.encode(*value);
  promise(written.size() <= input.size(), "a value is not longer than the bytes it was read from");
  if (kOneWayToWrite<T>)
    promise(written == std::vector<std::byte>(input.begin(), input.end()), "a value is written as it came");
  std::optional<T> again = coding.decode<T>(written);
  promise(again && coding.encode(*again) == written, "a value that is written can be read, and is the same");
}

using Check = void (*)(Bytes input);
template <class... T>
constexpr std::array<Check, sizeof...(T)> checksOf() {
  return {&check<T>...};
}

constexpr auto kChecks =
    checksOf<bool, int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t, uint64_t, float, double, Colour,
             rpc::Unit, rpc::Number, std::string, std::vector<int32_t>, std::vector<bool>, std::vector<std::string>,
             std::vector<std::vector<double>>, std::map<std::string, int64_t>,
             std::map<int8_t, std::vector<std::string>>, std::optional<std::string>,
             std::optional<std::optional<int8_t>>, std::tuple<>, std::tuple<int32_t, std::string, bool>,
             std::pair<std::string, double>, Point, Figure, std::vector<Figure>, std::vector<rpc::Number>, RRef<int>>();

void feed(Bytes input) {
  Choices choices(input);
  Check check = kChecks.at(choices.below(kChecks.size()));
  check(choices.rest());
}

template <class T>
std::vector<std::byte> seed(uint8_t kind, const T& value) {
  Coding coding;
  return joined({{std::byte{kind}}, coding.encode(value)});
}

Inputs seeds() {
  Figure figure{"house", {{1, 2, "door"}, {3, 4, {}}}, {{"a", {1, 2}}, {"b", {}}}, Colour::kBlue};
  Inputs all = {seed(0, true),
                seed(10, std::numeric_limits<double>::quiet_NaN()),
                seed(11, Colour::kBlue),
                seed(13, rpc::Number{true, 7, 0}),
                seed(13, rpc::Number{false, 0, 0.5}),
                seed(14, std::string("text")),
                seed(15, std::vector<int32_t>{1, 2, 3}),
                seed(16, std::vector<bool>{true, false}),
                seed(17, std::vector<std::string>{"a", "", "ccc"}),
                seed(18, std::vector<std::vector<double>>{{1, 2}, {}}),
                seed(19, std::map<std::string, int64_t>{{"a", 1}, {"b", 2}}),
                seed(20, std::map<int8_t, std::vector<std::string>>{{1, {"x"}}}),
                seed(21, std::optional<std::string>("x")),
                seed(22, std::optional<std::optional<int8_t>>(std::optional<int8_t>())),
                seed(24, std::tuple<int32_t, std::string, bool>{1, "b", true}),
                seed(25, std::pair<std::string, double>{"a", 1}),
                seed(26, Point{1, 2, "p"}),
                seed(27, figure),
                seed(28, std::vector<Figure>{figure, figure}),
                {std::byte{30}, std::byte{1}, {}, {}, {}}};
  for (uint8_t kind = 1; kind < 10; ++kind) all.push_back(joined({{std::byte{kind}}, Inputs::value_type(8)}));
  return all;
}

const Fuzzer kCodec("codec", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz

#include "treadle/core/rpc/codec.h"

#include "tests/core/rpc/figures.h"
#include "tests/support/seeds.h"
#include "treadle/core/rpc/references.h"
#include "treadle/core/rpc/rref.h"

namespace treadle::rpc::codec_test {
namespace {

struct Coding {
  std::shared_ptr<References> references = std::make_shared<References>(0, [](int, RefNotice, const ForkEntry&) {});

  template <class T>
  std::vector<std::byte> encode(const T& value) {
    Encoder encoder(*references, 1, nullptr);
    Codec<T>::encode(encoder, value);
    return encoder.writer().take();
  }
  template <class T>
  T decode(Bytes bytes) {
    Decoder decoder(*references, {bytes.begin(), bytes.end()}, 0, {}, {}, nullptr);
    T value = Codec<T>::decode(decoder);
    decoder.finish();
    return value;
  }
};

// What is yet to come does not travel, in whatever it lies: a reference does.
template <class T>
constexpr bool kNeverTravels =
    !Travels<T> && !Travels<std::vector<T>> && !Travels<std::map<int, T>> && !Travels<std::optional<T>> &&
    !Travels<std::tuple<int, T>> && !Travels<std::pair<int, T>>;
static_assert(kNeverTravels<Future<int>> && kNeverTravels<Future<void>> && kNeverTravels<Task<int>>);
static_assert(!kNeverTravels<RRef<int>>);

template <class T>
void expectRoundTrip(const T& value) {
  Coding coding;
  EXPECT_EQ(value, coding.decode<T>(coding.encode(value)));
}

TEST(Codec, carriesNumbersOfEveryWidthToTheirLimits) {
  auto limits = []<class T>(T) {
    for (T value : {std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max(), T{}, T{1}}) expectRoundTrip(value);
  };
  limits(int8_t{});
  limits(uint8_t{});
  limits(char{});
  limits(int16_t{});
  limits(uint16_t{});
  limits(int32_t{});
  limits(uint32_t{});
  limits(int64_t{});
  limits(uint64_t{});
  limits(long{});
  limits(float{});
  limits(double{});
  expectRoundTrip(std::numeric_limits<double>::infinity());
  expectRoundTrip(true);
  expectRoundTrip(Colour::kBlue);
  Coding coding;
  EXPECT_TRUE(std::isnan(coding.decode<float>(coding.encode(std::nanf("")))));
}

TEST(Codec, carriesTextAndContainersInOneAnother) {
  expectRoundTrip(std::string());
  expectRoundTrip(std::string("with\0zero", 9));
  expectRoundTrip(std::string(100'000, 'x'));
  expectRoundTrip(std::vector<bool>{true, false, true});
  expectRoundTrip(std::vector<std::vector<std::string>>{{}, {"a", ""}, {"b"}});
  expectRoundTrip(std::map<std::string, std::map<int, double>>{{"", {}}, {"x", {{1, 2.0}, {-3, 4.5}}}});
  expectRoundTrip(std::optional<std::optional<int>>());
  expectRoundTrip(std::optional<std::optional<int>>(std::optional<int>()));
  expectRoundTrip(std::tuple<int, std::string, std::pair<bool, double>>(1, "two", {true, 4.0}));
  expectRoundTrip(std::tuple<>());
}

TEST(Codec, carriesStructsByTheirFields) {
  expectRoundTrip(Point{1.5, -2});
  expectRoundTrip(Figure{"triangle", {{0, 0}, {1, 0}, {0, 1}}, Colour::kBlue, std::nullopt, {{"area", 0.5}}});
}

TEST(Codec, carriesRandomValuesOfADeepType) {
  test::forSeeds(300, [](test::Random& random) { expectRoundTrip(randomFigures(random)); });
}

TEST(Codec, namesTypesByWhatTravels) {
  EXPECT_EQ("i32", Codec<int>::name());
  EXPECT_EQ(Codec<long>::name(), Codec<long long>::name());  // the same bytes, so the same type
  EXPECT_EQ("u8", Codec<uint8_t>::name());
  EXPECT_EQ("f64", Codec<double>::name());
  EXPECT_EQ("enum:u8", Codec<Colour>::name());
  EXPECT_EQ("map<string,vector<optional<bool>>>",
            (Codec<std::map<std::string, std::vector<std::optional<bool>>>>::name()));
  EXPECT_EQ("tuple<i32,pair<f32,void>>", (Codec<std::tuple<int, std::pair<float, Unit>>>::name()));
  EXPECT_EQ("struct{f64,i32}", Codec<Point>::name());
  EXPECT_EQ("RRef<struct{f64,i32}>", Codec<RRef<Point>>::name());
}

TEST(Codec, refusesAValueThatIsCutAnywhereOrTooLong) {
  Coding coding;
  std::map<std::string, Figure> value = {
      {"one", {"triangle", {{0, 0}, {1, 0}}, Colour::kRed, Point{1, 2}, {{"x", 1}}}}};
  std::vector<std::byte> whole = coding.encode(value);
  using T = std::map<std::string, Figure>;
  for (size_t cut = 0; cut < whole.size(); ++cut)
    EXPECT_THROW(coding.decode<T>(Bytes(whole).first(cut)), DataError) << cut;
  whole.push_back({});
  EXPECT_THROW(coding.decode<T>(whole), DataError);
}

TEST(Codec, survivesDamageAnywhere) {
  Coding coding;
  test::forSeeds(3000, [&](test::Random& random) {
    std::vector<std::byte> bytes = coding.encode(randomFigures(random));
    for (uint64_t left = 1 + test::pick(random, 4); left > 0 && !bytes.empty(); --left)
      bytes[test::pick(random, bytes.size())] = static_cast<std::byte>(random());
    try {
      std::vector<Figure> figures = coding.decode<std::vector<Figure>>(bytes);
      ASSERT_LE(figures.size(), bytes.size());
    } catch (const DataError&) {}
  });
}

// A count that promises more than there is takes no memory.
TEST(Codec, boundsCountsByTheBytesThatAreThere) {
  Coding coding;
  std::vector<std::byte> bytes(4, std::byte{0xFF});
  EXPECT_THROW(coding.decode<std::vector<std::string>>(bytes), DataError);
  EXPECT_THROW((coding.decode<std::map<int, int>>(bytes)), DataError);
  EXPECT_THROW(coding.decode<std::string>(bytes), DataError);
}

TEST(Decoder, checksBuffersAndReferencesAgainstTheValues) {
  Coding coding;
  std::vector<Buffer> one = {allocateBuffer(4)};
  Decoder fewer(*coding.references, {}, 0, one, {}, nullptr);
  EXPECT_EQ(4U, fewer.takeBuffer().sizeBytes);
  EXPECT_THROW(fewer.takeBuffer(), DataError);
  Decoder more(*coding.references, {}, 0, one, {}, nullptr);
  EXPECT_THROW(more.finish(), DataError);
  std::vector<std::byte> index = coding.encode(uint32_t{0});
  Decoder none(*coding.references, index, 0, {}, {}, nullptr);
  EXPECT_THROW(none.reference(), DataError);
}

TEST(Encoder, refusesAReferenceToNothing) {
  Coding coding;
  EXPECT_THROW(coding.encode(RRef<int>()), ArgumentError);
}

// ---- arguments of make()

TEST(Loose, makesNumbersOfWhatWasWrittenAndRefusesWhatDoesNotFit) {
  EXPECT_EQ("text", loosen("text"));
  EXPECT_EQ(200, tighten<uint8_t>(loosen(200)));
  EXPECT_EQ(-5, tighten<int64_t>(loosen(int16_t{-5})));
  EXPECT_EQ(1.5F, tighten<float>(loosen(1.5)));
  EXPECT_EQ(5.0, tighten<double>(loosen(5))) << "an integer may be given for a floating number";
  EXPECT_THROW(tighten<int>(loosen(2.0)), ArgumentError) << "and not the other way";
  EXPECT_THROW(tighten<uint8_t>(loosen(256)), ArgumentError);
  EXPECT_THROW(tighten<uint8_t>(loosen(-1)), ArgumentError);
  EXPECT_THROW(tighten<float>(loosen(1e300)), ArgumentError);
  EXPECT_TRUE(std::isinf(tighten<float>(loosen(std::numeric_limits<double>::infinity()))));
  EXPECT_THROW(loosen(UINT64_MAX), ArgumentError);
}

TEST(Loose, numbersComeBackOverTheWire) {
  Coding coding;
  for (Number sent : {Number{true, INT64_MIN, 0}, Number{false, 0, 0.1}}) {
    auto bytes = coding.encode(sent);
    Decoder decoder(*coding.references, bytes, 0, {}, {}, nullptr);
    Number back = Codec<Number>::decode(decoder);
    EXPECT_EQ(sent.isInteger, back.isInteger);
    EXPECT_EQ(sent.integer, back.integer);
    EXPECT_EQ(sent.real, back.real);
  }
}

}  // namespace
}  // namespace treadle::rpc::codec_test

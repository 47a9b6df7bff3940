#include "treadle/core/rpc/functions.h"

#include "gtest/gtest.h"
#include "treadle/core/rpc/rref.h"

namespace treadle::functions_test {
namespace {

int add(int a, int b) { return a + b; }
int subtract(int a, int b) { return a - b; }
double scale(const std::vector<double>& values, double factor) { return values.at(0) * factor; }
void nothing(CallContext&, const std::string&) {}
Future<int> later(int) { return {}; }
struct Opaque {
  explicit Opaque(int, std::string) {}
  int get() const noexcept { return 1; }
  void set(CallContext&, int) {}
};
RRef<Opaque> give(RRef<Opaque> opaque) { return opaque; }

template <auto F>
std::string signatureOf() {
  return rpc::Signature<F>::text();
}

TEST(Signature, saysWhatTravels) {
  EXPECT_EQ("i32 (i32,i32)", signatureOf<&add>());
  EXPECT_EQ("f64 (vector<f64>,f64)", signatureOf<&scale>());
  EXPECT_EQ("void (string)", signatureOf<&nothing>());  // CallContext& is no part of it
  EXPECT_EQ("i32 (i32)", signatureOf<&later>());        // nor that the answer comes later
  EXPECT_NE(std::string::npos, signatureOf<&Opaque::get>().find("Opaque::()"));
  EXPECT_NE(std::string::npos, signatureOf<&give>().find("RRef<"));
  EXPECT_NE(std::string::npos, (rpc::makerSignature<Opaque, int, std::string>().find("made from (number,string)")));
}

TEST(Signature, hashIsFnv1a) {
  EXPECT_EQ(0xcbf29ce484222325U, rpc::signatureHash(""));
  EXPECT_EQ(0xaf63dc4c8601ec8cU, rpc::signatureHash("a"));
  EXPECT_EQ(0x85944171f73967e8U, rpc::signatureHash("foobar"));
}

TEST(Functions, offersWhatWasAddedAndOnlyNamesWhatWasDeclared) {
  Functions functions;
  functions.add<&add>("add").declare<&scale>("scale").addType<Opaque, int, std::string>("Opaque");
  EXPECT_EQ("Opaque, add", functions.offered());
  EXPECT_NE(nullptr, functions.find("add")->invoke);
  EXPECT_EQ(nullptr, functions.find("scale")->invoke);
  EXPECT_EQ(nullptr, functions.find("other"));
  EXPECT_EQ("none", Functions().offered());
  EXPECT_TRUE(Functions().addIdempotent<&add>("add").find("add")->idempotent);
}

TEST(RunTime, countsWhatTakesLongEachTimeAndNotWhatDidSoOnce) {
  using namespace std::chrono_literals;
  rpc::RunTime short_, long_;
  for (int i = 0; i < 100; ++i) short_.add(i % 3 == 1 ? 5ms : 2us);
  EXPECT_LE(short_.typical(), 2us);
  for (int i = 0; i < 40; ++i) long_.add(1ms + i * 1us);
  EXPECT_GT(long_.typical(), 900us);
  for (int i = 0; i < 100; ++i) long_.add(2us);  // it forgets
  EXPECT_LT(long_.typical(), 20us);
}

TEST(Functions, aNameMeansOneFunction) {
  Functions functions;
  functions.add<&add>("f");
  EXPECT_NO_THROW(functions.add<&add>("f"));
  try {
    functions.add<&subtract>("f");
    ADD_FAILURE() << "no exception";
  } catch (const ArgumentError& error) {
    EXPECT_NE(std::string::npos, std::string(error.what()).find("'f'"));
  }
  EXPECT_THROW(functions.declare<&scale>("f"), ArgumentError);
  EXPECT_THROW(functions.add<&scale>(""), ArgumentError);
  EXPECT_THROW(functions.add<&scale>(std::string(1025, 'f')), ArgumentError);  // it would not fit into a message
  functions.add<&scale>(std::string(1024, 'f'));
}

TEST(Functions, aFunctionMayHaveSeveralNamesAndBeDeclaredFirst) {
  Functions functions;
  functions.declare<&add>("plus").add<&add>("plus").add<&add>("sum");
  EXPECT_NE(nullptr, functions.find("plus")->invoke);
  auto entries = functions.entriesOf(&rpc::functionKey<&add>);
  ASSERT_EQ(2U, entries.size());
  EXPECT_EQ("plus", entries[0]->name);
  functions.declare<&add>("sum");
  EXPECT_NE(nullptr, functions.find("sum")->invoke);  // still offered
}

TEST(Functions, mergeTakesAllAndRefusesContradictions) {
  Functions one, two, three;
  one.add<&add>("add");
  two.declare<&add>("add").add<&scale>("scale");
  three.add<&subtract>("add");
  one.merge(two).merge(two);
  EXPECT_EQ("add, scale", one.offered());
  EXPECT_THROW(one.merge(three), ArgumentError);
}

}  // namespace
}  // namespace treadle::functions_test

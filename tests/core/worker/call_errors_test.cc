// What goes wrong with calls: each a typed error that says which function of which worker, and what to do.

#include <gtest/gtest.h>

#include "tests/core/worker/here.h"

namespace treadle::call_errors_test {
namespace {

using test::contains;
using test::messageOf;
using test::statusOf;
using test::WorkerJob;

struct Opaque {  // does not travel
  explicit Opaque(uint8_t value) : number(value) {
    if (value == 13) throw std::invalid_argument("13 brings bad luck");
  }
  int get() { return number; }
  int number;
};
struct Other {
  int get() { return 2; }
};

struct Awkward : std::exception {
  const char* what() const noexcept override { return "awkward"; }
};

int add(int a, int b) { return a + b; }
int elsewhere(int a) { return a; }  // declared by all, offered by nobody
int nameless(int a) { return a; }   // not in the list at all
std::string shout(const std::string& text) { return text + "!"; }
Opaque opaque(int number) { return Opaque(static_cast<uint8_t>(number)); }
void throwRange(const std::string& text) { throw std::out_of_range(text); }
void throwAwkward() { throw Awkward(); }
void throwInt() { throw 7; }
Future<int> failLater(CallContext& call) {
  return call.worker().spawn([]() -> int { throw std::runtime_error("thought better of it"); });
}
Future<int> emptyFuture() { return {}; }
void throwTyped(int code) { raise(Status(static_cast<Code>(code), "on purpose")); }
std::string longText(int size) { return std::string(static_cast<size_t>(size), 'x'); }
int callOn(CallContext& call, const std::string& where) { return call.worker().call<&elsewhere>(where, 1); }
void relay(CallContext& call, const std::string& where) { call.worker().call<&throwRange>(where, "from afar"); }
Other makeOther(int) { return {}; }
RRef<Opaque> disguised(CallContext& call) {
  return RRef<Opaque>(handleOf(call.worker().makeRRef(Other())));  // says Opaque, is an Other
}

Functions functions() {
  Functions all;
  all.add<&add>("add").declare<&elsewhere>("elsewhere").add<&shout>("shout").add<&opaque>("opaque");
  all.add<&throwRange>("throwRange").add<&throwAwkward>("throwAwkward").add<&throwInt>("throwInt");
  all.add<&failLater>("failLater").add<&emptyFuture>("emptyFuture").add<&throwTyped>("throwTyped");
  all.add<&longText>("longText").add<&callOn>("callOn").add<&relay>("relay").addType<Opaque, uint8_t>("Opaque");
  all.add<&Opaque::get>("Opaque.get").add<&makeOther>("makeOther").add<&disguised>("disguised");
  return all;
}

class CallErrors : public ::testing::Test {
 protected:
  WorkerJob job{{"a", "b", "c"}, functions(), [](JoinOptions& options) {
                  options.messageLimits.payloadBytes = 4U << 20;  // for the test of what is too large
                }};
  Worker& a = job[0];
};

// What every failure of function `function` on worker b says of itself.
void saysWhere(const Status& status, const std::string& function) {
  EXPECT_EQ("b", status.worker());
  EXPECT_EQ(function, status.function());
  EXPECT_TRUE(contains(status.message(), "'" + function + "' on worker 'b' (rank 1)"));
}

TEST_F(CallErrors, anUnknownWorkerIsAnsweredWithThoseThatThereAre) {
  for (auto wrong : {std::function([&] { a.call<&add>("d", 1, 2); }), std::function([&] { a.async<&add>("d", 1, 2); }),
                     std::function([&] { a.remote<&add>("d", 1, 2); }), std::function([&] { a.make<Opaque>("d", 1); }),
                     std::function([&] { a.peer("d"); })}) {
    std::string why = messageOf<NotFoundError>(wrong);
    EXPECT_TRUE(contains(why, "'d'"));
    EXPECT_TRUE(contains(why, "a, b, c"));
  }
}

TEST_F(CallErrors, anUnknownRankToo) {
  for (int rank : {-1, 3, 1'000'000})
    for (auto wrong :
         {std::function([&] { a.call<&add>(rank, 1, 2); }), std::function([&] { a.async<&add>(rank, 1, 2).wait(); }),
          std::function([&] { a.remote<&add>(rank, 1, 2); }), std::function([&] { a.make<Opaque>(rank, 1); }),
          std::function([&] { a.peer(rank); })})
      EXPECT_TRUE(contains(messageOf<NotFoundError>(wrong), "no rank " + std::to_string(rank) + " in a job of 3"));
}

TEST_F(CallErrors, anUnknownFunctionIsAnsweredWithThoseThatThereAre) {
  Status why = statusOf<NotFoundError>([&] { a.call<&elsewhere>("b", 1); });
  saysWhere(why, "elsewhere");
  EXPECT_TRUE(contains(why.message(), "offers no function 'elsewhere'"));
  EXPECT_TRUE(contains(why.message(), "add"));
  why = statusOf<NotFoundError>([&] { a.callNamed<int>("b", "adds", 1, 2); });
  saysWhere(why, "adds");
  messageOf<NotFoundError>([&] { a.remote<&elsewhere>("b", 1).toHere(); });
}

TEST_F(CallErrors, aFunctionWithoutANameHereIsToldHowToGetOne) {
  std::string why = messageOf<StateError>([&] { a.call<&nameless>("b", 1); });
  EXPECT_TRUE(contains(why, "add or declare"));
  EXPECT_TRUE(contains(messageOf<StateError>([&] { a.make<Other>("b"); }), "Other"));
}

TEST_F(CallErrors, aNameThatIsTooLongHarmsNobody) {
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { a.callNamed<int>("b", std::string(1025, 'f')); }), "1025"));
  saysWhere(statusOf<NotFoundError>([&] { a.callNamed<int>("b", std::string(1024, 'f')); }), std::string(1024, 'f'));
  EXPECT_EQ(3, a.call<&add>("b", 1, 2));
}

TEST_F(CallErrors, aSignatureMismatchNamesBothSignatures) {
  Status why = statusOf<StateError>([&] { a.callNamed<int>("b", "add", 1, std::string("2")); });
  saysWhere(why, "add");
  EXPECT_TRUE(contains(why.message(), "i32 (i32,i32)"));
  EXPECT_TRUE(contains(why.message(), "i32 (i32,string)"));
  messageOf<StateError>([&] { a.callNamed<double>("b", "add", 1, 2); });
  messageOf<StateError>([&] { a.callNamed<int>("b", "add", 1); });
  messageOf<StateError>([&] { a.callNamed<int>("b", "add", 1, 2L); });
  messageOf<StateError>([&] { a.remoteNamed<int>("b", "add", 1, 2L).toHere(); });
  EXPECT_EQ(3, (a.callNamed<int>("b", "add", 1, 2)));
}

TEST_F(CallErrors, argumentsThatNoObjectCanBeMadeFromAreRefused) {
  std::string why = messageOf<ArgumentError>([&] { a.make<Opaque>("b", "text"); });
  EXPECT_TRUE(contains(why, "'Opaque'"));
  EXPECT_TRUE(contains(why, "made from (number)"));
  EXPECT_TRUE(contains(why, "made from (string)"));
  messageOf<ArgumentError>([&] { a.make<Opaque>("b"); });
  messageOf<ArgumentError>([&] { a.make<Opaque>("b", UINT64_MAX); });
  Status narrow = statusOf<ArgumentError>([&] { a.make<Opaque>("b", 256).waitUntilReady(); });
  EXPECT_EQ("b", narrow.worker());
  EXPECT_TRUE(contains(narrow.message(), "256"));
  messageOf<ArgumentError>([&] { a.make<Opaque>("b", 1.5).waitUntilReady(); });
  EXPECT_TRUE(test::eventuallyReleased([&] { return a.metrics().referencesHeld == 0; }));
}

TEST_F(CallErrors, whatAFunctionThrowsKeepsItsTypeAndText) {
  Status why = statusOf<RemoteError>([&] { a.call<&throwRange>("b", "no such row"); });
  saysWhere(why, "throwRange");
  EXPECT_TRUE(contains(why.message(), "no such row"));
  EXPECT_EQ("std::out_of_range", why.remoteType());
  why = statusOf<RemoteError>([&] { a.call<&throwAwkward>("b"); });
  EXPECT_TRUE(contains(why.remoteType(), "Awkward"));
  why = statusOf<RemoteError>([&] { a.call<&throwInt>("b"); });
  saysWhere(why, "throwInt");
  EXPECT_TRUE(contains(why.message(), "not a std::exception"));
  why = statusOf<RemoteError>([&] { a.make<Opaque>("b", 13).waitUntilReady(); });
  EXPECT_EQ("b", why.worker());
  EXPECT_TRUE(contains(why.message(), "13 brings bad luck"));
}

TEST_F(CallErrors, alsoReachWhoWaitsForAFutureOrAReference) {
  saysWhere(statusOf<RemoteError>([&] { a.async<&throwRange>("b", "x").wait(); }), "throwRange");
  saysWhere(statusOf<RemoteError>([&] { a.call<&failLater>("b"); }), "failLater");
  saysWhere(statusOf<StateError>([&] { a.call<&emptyFuture>("b"); }), "emptyFuture");
  RRef<void> ref = a.remote<&throwRange>("b", "lost row");
  for (int i = 0; i < 2; ++i) {  // before and after this worker knows
    Status why = statusOf<RemoteError>([&] { ref.toHere(); });
    EXPECT_EQ("b", why.worker());
    EXPECT_TRUE(contains(why.message(), "lost row"));
  }
  EXPECT_FALSE(ref.confirmedByOwner());
}

template <class E>
void keepsItsClass(Worker& a, Code code) {
  Status why = statusOf<E>([&] { a.call<&throwTyped>("b", static_cast<int>(code)); });
  EXPECT_EQ(code, why.code());
  EXPECT_TRUE(contains(why.message(), "on purpose"));
  saysWhere(why, "throwTyped");
}

TEST_F(CallErrors, anErrorOfTreadleThrownByAFunctionKeepsItsClass) {
  keepsItsClass<CancelledError>(a, Code::kCancelled);
  keepsItsClass<TimeoutError>(a, Code::kDeadlineExceeded);
  keepsItsClass<PeerLostError>(a, Code::kPeerLost);
  keepsItsClass<ResourceError>(a, Code::kResourceExhausted);
  keepsItsClass<ArgumentError>(a, Code::kInvalidArgument);
  keepsItsClass<StateError>(a, Code::kFailedPrecondition);
  keepsItsClass<NotFoundError>(a, Code::kNotFound);
  keepsItsClass<DataError>(a, Code::kDataLoss);
  keepsItsClass<AuthError>(a, Code::kUnauthenticated);
  keepsItsClass<InternalError>(a, Code::kInternal);
}

TEST_F(CallErrors, ofACallWithinACallNameTheWorkerWhereItHappened) {
  Status why = statusOf<NotFoundError>([&] { a.call<&callOn>("b", "c"); });
  EXPECT_EQ("c", why.worker());
  EXPECT_TRUE(contains(why.message(), "'callOn' on worker 'b' (rank 1): 'elsewhere' on worker 'c' (rank 2): "));
  why = statusOf<RemoteError>([&] { a.call<&relay>("b", "c"); });
  EXPECT_EQ("std::out_of_range", why.remoteType());
  EXPECT_EQ("c", why.worker());
  EXPECT_EQ((std::vector<std::string>{"c", "b"}), why.trail());
  EXPECT_TRUE(statusOf<ArgumentError>([&] { raise(invalidArgument("here")); }).trail().empty());
}

TEST_F(CallErrors, aResultThatDoesNotTravelStaysAsAReference) {
  EXPECT_EQ(5, a.remote<&opaque>("b", 5).call<&Opaque::get>());
}

TEST_F(CallErrors, anObjectOfAnotherTypeIsNotTouched) {
  RRef<Opaque> ref = a.call<&disguised>("b");
  std::string why = messageOf<StateError>([&] { ref.call<&Opaque::get>(); });
  EXPECT_TRUE(contains(why, "Other"));
  EXPECT_TRUE(contains(why, "Opaque"));
  RRef<int> text = RRef<int>(handleOf(a.remote<&shout>("b", "x")));
  EXPECT_TRUE(contains(messageOf<StateError>([&] { text.toHere(); }), "basic_string"));
}

TEST_F(CallErrors, whatIsTooLargeIsRefusedAndTheNextCallGoesThrough) {
  messageOf<ResourceError>([&] { a.call<&shout>("b", std::string(5 << 20, 'x')); });
  Status why = statusOf<ResourceError>([&] { a.call<&longText>("b", 5 << 20); });
  EXPECT_EQ("b", why.worker());
  why = statusOf<RemoteError>([&] { a.call<&throwRange>("b", std::string(3 << 20, 'x')); });
  EXPECT_EQ("std::out_of_range", why.remoteType());
  EXPECT_EQ("ok!", a.call<&shout>("b", "ok"));
}

}  // namespace
}  // namespace treadle::call_errors_test

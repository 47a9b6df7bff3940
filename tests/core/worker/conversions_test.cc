// The four ways in which an argument becomes a parameter: who gets the value, who a reference, and which link its bytes
// take.

#include <gtest/gtest.h>

#include "tests/core/worker/bulk.h"
#include "tests/core/worker/here.h"

namespace treadle::conversions_test {
namespace {

using test::Bulk;
using test::contains;
using test::Counter;
using test::Gate;
using test::Here;
using test::messageOf;
using test::statusOf;
using test::WorkerJob;

constexpr size_t kBulkBytes = size_t{1} << 20;

class Ledger {
 public:
  int add(int number, const std::string& text) { return number + static_cast<int>(text.size()); }
  int64_t weigh(const RRef<int>& number, int64_t factor) { return factor * number.toHere(); }
};

int identity(int number) { return number; }
int afterGate(Here<Counter> arrived, Here<Gate> gate, int number) {
  test::waitAtGate(arrived, gate);
  return number;
}
int broken() { throw std::runtime_error("nothing came of it"); }
std::string text() { return "text"; }
Bulk makeBulk(unsigned value) { return test::bulkOf(kBulkBytes, value); }
int64_t sumOf(const Bulk& bulk) { return test::sumOf(bulk); }
int64_t sumOfBoth(const Bulk& first, int64_t factor, const Bulk& second) {
  return test::sumOf(first) + factor * test::sumOf(second);
}
RRef<Ledger> newLedger(CallContext& call) { return call.worker().makeRRef(Ledger()); }
std::string ownerOf(const RRef<int>& number) { return number.owner().name; }
int fetched(const RRef<int>& number) { return number.toHere(); }
RRef<int> keep(RRef<int> number) { return number; }
int throughTwo(const RRef<RRef<int>>& nested) { return nested.toHere().toHere(); }
int plus(int first, int second) { return first + second; }
RRef<int> sumLater(CallContext& call, const RRef<int>& number) { return call.worker().remote<&plus>("b", number, 1); }
// Calls on with what it was given as a value: at a third worker.
int callOn(CallContext& call, const std::string& next, int number) {
  return call.worker().call<&plus>(next, number, 1);
}

const Functions& functions() {
  static const Functions all = [] {
    Functions some;
    some.add<&identity>("identity").add<&afterGate>("afterGate").add<&broken>("broken").add<&text>("text");
    some.add<&makeBulk>("makeBulk").add<&sumOf>("sumOf").add<&sumOfBoth>("sumOfBoth").add<&newLedger>("newLedger");
    some.add<&sumLater>("sumLater")
        .add<&ownerOf>("ownerOf")
        .add<&fetched>("fetched")
        .add<&keep>("keep")
        .add<&throughTwo>("throughTwo");
    some.add<&plus>("plus").add<&callOn>("callOn").add<&Ledger::add>("Ledger.add");
    return some.add<&Ledger::weigh>("Ledger.weigh");
  }();
  return all;
}

class Conversions : public ::testing::Test {
 protected:
  uint64_t tcpBytes(int from, int to) { return job[static_cast<size_t>(from)].channelsTo(to).tcp.sentBytes; }

  Counter arrived;  // these outlive the job
  Gate gate;
  WorkerJob job{{"a", "b", "c"}, functions(), [](JoinOptions& options) {
                  // One way for all bytes, so that they can be counted.
                  options.channels = {.unixSockets = false, .lanes = false};
                }};
  Worker &a = job[0], &b = job[1], &c = job[2];
};

TEST_F(Conversions, aValueForAReferenceStaysAtTheCaller) {
  EXPECT_EQ("a", a.call<&ownerOf>("b", 5));
  EXPECT_EQ(5, a.call<&fetched>("b", 5));
  EXPECT_EQ(5, a.async<&fetched>("c", 5).wait());
  EXPECT_EQ(5, a.call<&fetched>("a", 5));
  RRef<int> home = a.call<&keep>("b", 7);
  EXPECT_TRUE(home.isOwner());
  EXPECT_EQ(7, home.localValue());
  RRef<int> mine = a.makeRRef(8);
  EXPECT_EQ(8, a.call<&throughTwo>("b", mine));
  EXPECT_EQ(9, a.call<&throughTwo>("b", a.remote<&identity>("c", 9)));
}

TEST_F(Conversions, theValueOfAReferenceGoesToTheCalleeWhoeverOwnsIt) {
  for (const char* owner : {"a", "b", "c"})
    for (const char* callee : {"a", "b", "c"}) {
      RRef<int> number = a.remote<&identity>(owner, 20);
      EXPECT_EQ(23, a.call<&plus>(callee, number, 3)) << owner << callee;
      EXPECT_EQ(23, a.async<&plus>(callee, 3, number).wait()) << owner << callee;
      EXPECT_EQ(40, a.remote<&plus>(callee, number, number).toHere()) << owner << callee;
      EXPECT_EQ(21, a.call<&callOn>(callee, "b", number)) << owner << callee;
    }
}

TEST_F(Conversions, bytesOfAThirdWorkersValueTakeTheLinkFromItsOwnerToTheCallee) {
  RRef<Bulk> atC = a.remote<&makeBulk>("c", 3U), atA = a.remote<&makeBulk>("a", 5U);
  EXPECT_EQ(static_cast<int64_t>(kBulkBytes) * 3, a.call<&sumOf>("b", atC));
  EXPECT_EQ(kBulkBytes, tcpBytes(2, 1));
  for (auto [from, to] : {std::pair(0, 1), {0, 2}, {1, 0}, {1, 2}, {2, 0}}) EXPECT_EQ(0U, tcpBytes(from, to));

  EXPECT_EQ(static_cast<int64_t>(kBulkBytes) * 13, a.call<&sumOfBoth>("b", atC, 2, atA));
  EXPECT_EQ(2 * kBulkBytes, tcpBytes(2, 1));
  EXPECT_EQ(kBulkBytes, tcpBytes(0, 1));
  for (auto [from, to] : {std::pair(0, 2), {1, 0}, {1, 2}, {2, 0}}) EXPECT_EQ(0U, tcpBytes(from, to));

  EXPECT_EQ(static_cast<int64_t>(kBulkBytes) * 3, a.call<&sumOf>("c", atC));
  for (auto [from, to] : {std::pair(0, 2), {1, 2}, {2, 2}}) EXPECT_EQ(0U, tcpBytes(from, to)) << "it is there";
}

TEST_F(Conversions, serveMemberFunctionsToo) {
  RRef<Ledger> ledger = a.call<&newLedger>("b");
  EXPECT_EQ(14, ledger.call<&Ledger::add>(a.remote<&identity>("c", 10), a.remote<&text>("b")));
  EXPECT_EQ(30, ledger.call<&Ledger::weigh>(10, a.makeRRef(int64_t{3})));
}

TEST_F(Conversions, aValueThatIsYetToBeMadeIsWaitedForWithoutAThread) {
  std::vector<Future<int>> others;
  for (const char* owner : {"a", "b", "c"}) {
    RRef<int> late = a.remote<&afterGate>(owner, arrived, gate, 5);
    others.push_back(a.async<&plus>("b", late, 1));
    others.push_back(a.async<&callOn>("c", "b", late));
    EXPECT_FALSE(others[others.size() - 2].ready() || others.back().ready());
  }
  RRef<int> late = a.remote<&afterGate>("c", arrived, gate, 5);
  std::vector<Future<int>> many;
  for (int i = 0; i < 2000; ++i) many.push_back(a.async<&plus>("b", late, i));  // more than handlers may wait
  EXPECT_EQ(3, a.call<&plus>("b", 1, 2)) << "others go on meanwhile";
  gate.open();
  for (int i = 0; i < 2000; ++i) EXPECT_EQ(5 + i, many[static_cast<size_t>(i)].wait());
  for (Future<int>& sum : others) EXPECT_EQ(6, sum.wait());
}

TEST_F(Conversions, aReferenceToNothingOrToSomethingElseIsRefused) {
  RRef<int> none;
  messageOf<ArgumentError>([&] { a.call<&plus>("b", none, 1); });
  for (const char* owner : {"a", "b", "c"}) {
    RRef<std::string> words = a.remote<&text>(owner);
    words.waitUntilReady();
    RRef<int> wrong = RRef<int>(handleOf(words));
    Status why = statusOf<StateError>([&] { a.call<&plus>("b", wrong, 1); });
    EXPECT_TRUE(contains(why.message(), "basic_string") && contains(why.message(), "not to a int")) << owner;
  }
  messageOf<ArgumentError>([&] { b.call<&plus>("c", a.makeRRef(1), 1); });
  messageOf<ArgumentError>([&] { b.call<&fetched>("c", a.makeRRef(1)); });
}

TEST_F(Conversions, aValueThatWasNotMadeFailsTheCallAndSaysWhy) {
  for (const char* owner : {"a", "b", "c"}) {
    RRef<int> failed = a.remote<&broken>(owner);
    Status why = statusOf<RemoteError>([&] { a.call<&plus>("b", failed, 1); });
    EXPECT_TRUE(contains(why.message(), "nothing came of it")) << owner;
    EXPECT_EQ(owner, why.worker());
  }
}

TEST_F(Conversions, whatIsGivenIsHeldUntilTheCallIsAnsweredAndNoLonger) {
  Future<int> sum = a.async<&plus>("b", a.remote<&afterGate>("c", arrived, gate, 5), 1);
  Future<int> kept = a.async<&fetched>("b", 5);
  arrived.waitFor(1);
  gate.open();
  EXPECT_EQ(6, sum.wait());
  EXPECT_EQ(5, kept.wait());
  EXPECT_TRUE(test::eventually([&] {
    size_t left = 0;
    for (Worker* worker : {&a, &b, &c}) {
      Metrics metrics = worker->metrics();
      left += metrics.valuesOwned + metrics.forksOfOwned + metrics.referencesHeld + metrics.referencesPending;
    }
    return left == 0;
  }));
}

TEST_F(Conversions, whoGivesUpIsWaitedForByNobody) {
  for (const char* owner : {"b", "c"}) {
    RRef<int> late = a.remote<&afterGate>(owner, arrived, gate, 5);
    messageOf<TimeoutError>([&] { a.with({.timeout = std::chrono::milliseconds(20)}).call<&plus>("b", late, 1); });
    Future<int> sum = a.async<&plus>("b", late, 1);
    sum.cancel();
    messageOf<CancelledError>([&] { sum.wait(); });
    Future<int> fetch = a.async<&fetched>("b", late);
    fetch.cancel();
  }
  arrived.waitFor(2);
  // What is left are the two at the gate, and the handlers that fetch for themselves: nothing interrupts those.
  EXPECT_TRUE(test::eventually([&] { return b.metrics().handlersRunning + c.metrics().handlersRunning <= 5; }));
  gate.open();
  EXPECT_TRUE(test::eventually([&] { return b.metrics().handlersRunning + c.metrics().handlersRunning == 0; }));
}

TEST_F(Conversions, whatOthersHoldIsMadeThoughWhoAskedForItIsLost) {
  RRef<int> late = a.remote<&afterGate>("b", arrived, gate, 5);
  RRef<int> waiting = a.call<&sumLater>("c", late);  // c asked b for it, and passed it on
  Future<int> fetched = waiting.toHereAsync();
  EXPECT_EQ(3, a.call<&plus>("b", 1, 2));  // b has read that a waits for it
  job.kill(2);
  gate.open();
  EXPECT_EQ(6, fetched.wait());
}

TEST_F(Conversions, aLostOwnerFailsTheCallAndIsNamed) {
  RRef<int> late = a.remote<&afterGate>("c", arrived, gate, 5);
  Future<int> sum = a.async<&plus>("b", late, 1);
  arrived.waitFor(1);
  gate.open();  // for the handler, which must end before its worker can
  job.kill(2);
  try {
    EXPECT_EQ(6, sum.wait());  // it was quicker
  } catch (const PeerLostError& lost) {
    EXPECT_EQ("c", lost.status().worker());
  }
  Status why = statusOf<PeerLostError>([&] {
    // Until the loss is noticed a call may find the value's owner gone only on its way.
    for (const TimePoint end = test::patience(); Clock::now() < end;) (void)a.call<&plus>("b", late, 1);
  });
  EXPECT_EQ("c", why.worker());
}

}  // namespace
}  // namespace treadle::conversions_test

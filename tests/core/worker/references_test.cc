// What a program can do with references to values of other workers.

#include <gtest/gtest.h>

#include <map>

#include "tests/core/worker/here.h"

namespace treadle::references_test {
namespace {

using test::contains;
using test::Counter;
using test::Gate;
using test::Here;
using test::messageOf;
using test::statusOf;
using test::WorkerJob;

class Tally {
 public:
  explicit Tally(int start) : count_(start) {}
  Tally(Tally&& other) noexcept : count_(other.count()) {}
  int add(int more) { return count_ += more; }
  int count() const { return count_; }
  void clear() { count_ = 0; }
  void fail() { throw std::runtime_error("the tally is broken"); }
  std::string where(CallContext& call, const std::string& text) { return text + call.worker().self().name; }

 private:
  std::atomic<int> count_;
};

// Called like a function, by one name or the other.
struct Doubler {
  int times = 2;
  int operator()(int number) const { return times * number; }
};
struct Layer {
  std::string forward(const std::string& text) { return text + "!"; }
};
RRef<Doubler> newDoubler(CallContext& call) { return call.worker().makeRRef(Doubler()); }
RRef<Layer> newLayer(CallContext& call) { return call.worker().makeRRef(Layer()); }

struct Basket {
  std::string label;
  std::vector<RRef<Tally>> tallies;
};
TREADLE_FIELDS(Basket, label, tallies)

int identity(int number) { return number; }
void nothing(Here<Counter> counter) { counter->add(); }
int afterGate(Here<Gate> gate, int number) {
  blocking([&] { gate->wait(); });
  return number;
}
void failAfterGate(Here<Gate> gate) {
  blocking([&] { gate->wait(); });
  throw std::runtime_error("nothing came of it");
}
RRef<Tally> newTally(CallContext& call, int start) { return call.worker().makeRRef(Tally{start}); }
int fetch(const RRef<int>& number) { return number.toHere(); }
int countOf(const RRef<Tally>& tally) { return tally.call<&Tally::count>(); }
// Whether the reference is to a value of this worker, and if so the value by the short way.
int localCount(const RRef<Tally>& tally) { return tally.isOwner() ? tally.localValue().count() : -1; }
int forward(CallContext& call, const std::string& next, const RRef<Tally>& tally) {
  return call.worker().call<&countOf>(next, tally);
}
RRef<Tally> handBack(RRef<Tally> tally) { return tally; }
int sum(const std::vector<RRef<Tally>>& tallies) {
  int all = 0;
  for (const auto& tally : tallies) all += tally.call<&Tally::add>(1);
  return all;
}
Basket grow(CallContext& call, Basket basket) {
  basket.tallies.push_back(call.worker().makeRRef(Tally{100}));
  basket.label += "+";
  return basket;
}
std::map<std::string, std::optional<RRef<int>>> numbers(CallContext& call) {
  return {{"one", call.worker().makeRRef(1)}, {"none", std::nullopt}};
}

Functions functions() {
  Functions all;
  all.add<&identity>("identity").add<&nothing>("nothing").add<&afterGate>("afterGate").add<&newTally>("newTally");
  all.add<&failAfterGate>("failAfterGate").add<&fetch>("fetch").add<&countOf>("countOf").add<&forward>("forward");
  all.add<&localCount>("localCount").add<&handBack>("handBack").add<&sum>("sum").add<&grow>("grow");
  all.add<&newDoubler>("newDoubler").add<&newLayer>("newLayer");
  all.add<&Doubler::operator()>("Doubler").add<&Layer::forward>("Layer.forward");
  all.add<&numbers>("numbers").addType<Tally, int>("Tally");
  all.add<&Tally::add>("Tally.add").add<&Tally::count>("Tally.count").add<&Tally::clear>("Tally.clear");
  all.add<&Tally::fail>("Tally.fail").add<&Tally::where>("Tally.where");
  return all;
}

class References : public ::testing::Test {
 protected:
  Gate gate;  // outlives the job
  WorkerJob job{{"a", "b", "c"}, functions()};
  Worker &a = job[0], &b = job[1], &c = job[2];
};

TEST_F(References, areThereAtOnceAndKnowTheirOwner) {
  RRef<int> ref = a.remote<&afterGate>("b", gate, 5);
  EXPECT_TRUE(ref.valid());
  EXPECT_EQ("b", ref.owner().name);
  EXPECT_EQ(1, ref.owner().rank);
  EXPECT_FALSE(ref.isOwner());
  EXPECT_FALSE(ref.confirmedByOwner());
  Future<int> value = ref.toHereAsync();
  EXPECT_FALSE(value.ready());
  gate.open();
  EXPECT_EQ(5, value.wait());
  EXPECT_EQ(5, ref.toHere());
  EXPECT_TRUE(test::eventually([&] { return ref.confirmedByOwner(); }));
}

TEST_F(References, toWhatOneOwnsGiveTheValueItself) {
  RRef<Tally> mine = a.makeRRef(Tally{3});
  EXPECT_TRUE(mine.isOwner());
  EXPECT_TRUE(mine.confirmedByOwner());
  EXPECT_EQ("a", mine.owner().name);
  mine.localValue().add(4);
  EXPECT_EQ(7, b.call<&identity>("b", mine.localValue().count()));
  EXPECT_EQ(7, mine.call<&Tally::count>());
  EXPECT_EQ(5, a.makeRRef(5).toHere());
  EXPECT_EQ(5, a.makeRRef(5).toHereAsync().wait());
  auto shared = std::make_shared<Tally>(1);
  RRef<Tally> other = a.makeRRef(shared);
  shared->add(1);
  EXPECT_EQ(2, other.call<&Tally::count>());
}

TEST_F(References, toWhatOneMadeAtOneselfAreLocalToo) {
  RRef<Tally> made = a.make<Tally>("a", 3);
  EXPECT_TRUE(made.isOwner());
  EXPECT_EQ(3, made.localValue().count());
  RRef<int> number = a.remote<&identity>(a.self(), 4);
  EXPECT_TRUE(number.isOwner());
  EXPECT_EQ(4, number.localValue());
  EXPECT_EQ(4, number.toHere());
  RRef<int> late = a.remote<&afterGate>("a", gate, 5);
  EXPECT_FALSE(late.confirmedByOwner());
  Future<int> value = a.spawn([&] { return late.localValue(); });
  gate.open();
  EXPECT_EQ(5, value.wait());
}

TEST_F(References, toOthersValuesHaveNoLocalValue) {
  RRef<Tally> there = a.make<Tally>("b", 3);
  std::string why = messageOf<StateError>([&] { there.localValue(); });
  EXPECT_TRUE(contains(why, "'b'"));
}

TEST_F(References, callFunctionsOfTheObjectAtItsOwner) {
  RRef<Tally> tally = a.make<Tally>("b", 10);
  EXPECT_EQ(15, tally.call<&Tally::add>(5));
  EXPECT_EQ(16, tally.async<&Tally::add>(1).wait());
  RRef<int> result = tally.remote<&Tally::add>(4);
  EXPECT_EQ("b", result.owner().name);
  EXPECT_EQ(20, result.toHere());
  EXPECT_EQ("at b", tally.call<&Tally::where>("at "));
  tally.call<&Tally::clear>();
  EXPECT_EQ(0, tally.call<&Tally::count>());
  Status why = statusOf<RemoteError>([&] { tally.call<&Tally::fail>(); });
  EXPECT_EQ("b", why.worker());
  EXPECT_TRUE(contains(why.message(), "the tally is broken"));
}

TEST_F(References, toWhatCanBeCalledAreCalledAtTheOwner) {
  RRef<Doubler> doubler = a.call<&newDoubler>("b");
  RRef<int> ten = doubler(5);
  EXPECT_EQ("b", ten.owner().name);
  EXPECT_EQ(10, ten.toHere());
  EXPECT_EQ(20, doubler(ten).toHere()) << "by reference, too";
  EXPECT_EQ("layer!", a.call<&newLayer>("c")("layer").toHere());
}

TEST_F(References, toNothingSayThatSomethingIsDone) {
  Counter counter;
  RRef<void> done = a.remote<&nothing>("b", counter);
  done.toHere();
  EXPECT_EQ(1, counter.count());
  done.toHereAsync().wait();
  done.waitUntilReady();
  EXPECT_EQ(1, counter.count());  // waiting again does not do it again
  RRef<Tally> tally = a.make<Tally>("b", 10);
  RRef<void> cleared = tally.remote<&Tally::clear>();
  cleared.toHere();
  EXPECT_EQ(0, tally.call<&Tally::count>());
  EXPECT_TRUE(contains(messageOf<RemoteError>([&] { tally.remote<&Tally::fail>().toHere(); }), "broken"));
}

TEST_F(References, goToAnyWorkerThatMayUseThem) {
  RRef<Tally> atB = a.make<Tally>("b", 10);
  EXPECT_EQ(10, a.call<&countOf>("c", atB));     // from a user to another user
  EXPECT_EQ(10, a.call<&localCount>("b", atB));  // from a user to the owner
  EXPECT_EQ(-1, a.call<&localCount>("c", atB));
  EXPECT_EQ(10, a.call<&forward>("c", "a", atB));  // and back again
  EXPECT_EQ(10, a.call<&forward>("c", "b", atB));
  EXPECT_EQ(10, a.call<&forward>("b", "c", atB));
  RRef<Tally> mine = a.makeRRef(Tally{7});
  EXPECT_EQ(7, a.call<&forward>("b", "c", mine));  // from the owner to a user to another user
  EXPECT_EQ(7, a.call<&countOf>("a", mine));       // to oneself
}

TEST_F(References, areResultsOfFunctionsAndOfTheValuesOfReferences) {
  RRef<Tally> made = a.call<&newTally>("b", 5);
  EXPECT_EQ("b", made.owner().name);
  EXPECT_EQ(6, made.call<&Tally::add>(1));
  RRef<Tally> back = a.call<&handBack>("c", made);
  EXPECT_EQ("b", back.owner().name);
  EXPECT_EQ(7, back.call<&Tally::add>(1));
  RRef<Tally> mine = a.makeRRef(Tally{1});
  RRef<Tally> home = a.call<&handBack>("b", mine);
  EXPECT_TRUE(home.isOwner());
  EXPECT_EQ(&mine.localValue(), &home.localValue());
  RRef<RRef<Tally>> nested = a.remote<&newTally>("c", 8);
  EXPECT_EQ(8, nested.toHere().call<&Tally::count>());
}

TEST_F(References, travelInsideOfContainersAndStructs) {
  std::vector<RRef<Tally>> tallies = {a.make<Tally>("b", 1), a.make<Tally>("c", 10), a.makeRRef(Tally{100})};
  tallies.push_back(tallies[0]);
  EXPECT_EQ(2 + 11 + 101 + 3, a.call<&sum>("c", tallies));
  EXPECT_EQ(0, a.call<&sum>("c", std::vector<RRef<Tally>>()));
  Basket grown = a.call<&grow>("c", Basket{"basket", tallies});
  ASSERT_EQ(5U, grown.tallies.size());
  EXPECT_EQ("basket+", grown.label);
  EXPECT_EQ("c", grown.tallies[4].owner().name);
  EXPECT_EQ(100, grown.tallies[4].call<&Tally::count>());
  auto named = a.call<&numbers>("b");
  EXPECT_EQ(1, named["one"]->toHere());
  EXPECT_FALSE(named["none"].has_value());
}

TEST_F(References, mayBePassedOnBeforeTheValueIsMade) {
  RRef<int> ref = a.remote<&afterGate>("b", gate, 6);
  Future<int> atC = a.async<&fetch>("c", ref), atB = a.async<&fetch>("b", ref), atA = a.async<&fetch>("a", ref);
  ref = {};
  EXPECT_FALSE(atC.ready());
  gate.open();
  EXPECT_EQ(6, atC.wait());
  EXPECT_EQ(6, atB.wait());
  EXPECT_EQ(6, atA.wait());
}

TEST_F(References, tellEveryHolderWhyThereIsNoValue) {
  RRef<void> ref = a.remote<&failAfterGate>("b", gate);
  RRef<int> number = RRef<int>(handleOf(ref));
  Future<int> atC = a.async<&fetch>("c", number), atA = a.async<&fetch>("a", number);
  gate.open();
  for (Future<int>* one : {&atC, &atA}) {
    Status why = statusOf<RemoteError>([&] { one->wait(); });
    EXPECT_TRUE(contains(why.message(), "nothing came of it"));
    EXPECT_EQ("b", why.worker());
  }
  messageOf<RemoteError>([&] { ref.toHere(); });
  messageOf<RemoteError>([&] { ref.waitUntilReady(); });
}

TEST_F(References, ofTypesThatDoNotTravelAreNotFetched) {
  RRef<Tally> tally = a.make<Tally>("b", 1);
  tally.waitUntilReady();  // this they can all the same
  Status why = statusOf<ArgumentError>([&] { RRef<int>(handleOf(tally)).toHere(); });
  EXPECT_TRUE(contains(why.message(), "Tally"));
  EXPECT_EQ("b", why.worker());
}

TEST_F(References, toNoValueAtAllAreRefused) {
  RRef<Tally> none;
  EXPECT_FALSE(none.valid());
  messageOf<StateError>([&] { none.owner(); });
  messageOf<StateError>([&] { none.isOwner(); });
  messageOf<StateError>([&] { none.call<&Tally::count>(); });
  messageOf<StateError>([&] { none.waitUntilReady(); });
  messageOf<ArgumentError>([&] { a.call<&countOf>("b", none); });
  messageOf<ArgumentError>([&] { a.call<&sum>("b", std::vector{a.makeRRef(Tally{1}), none}); });
}

}  // namespace
}  // namespace treadle::references_test

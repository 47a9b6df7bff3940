// A value lives exactly as long as any reference to it anywhere: never shorter, and when the last one goes it
// is destroyed, whatever way it came about and whoever passed it on to whom in which order.

#include <gtest/gtest.h>

#include <deque>
#include <thread>
#include <utility>

#include "tests/core/worker/here.h"
#include "tests/support/seeds.h"

namespace treadle::reference_lifetime_test {
namespace {

using test::Counter;
using test::Gate;
using test::Here;
using test::WorkerJob;

// Counts its destructions where the test sees them.
class Watched {
 public:
  explicit Watched(Here<Counter> gone) : gone_(gone) {}
  explicit Watched(uint64_t gone) { gone_.address = gone; }
  Watched(Watched&& other) noexcept : gone_(std::exchange(other.gone_, {})) {}
  ~Watched() {
    if (gone_.address != 0) std::exchange(gone_, {})->add();
  }
  int alive() { return gone_.address != 0 ? 1 : 0; }

 private:
  Here<Counter> gone_;
};

// Where workers keep references between calls.
struct Shelf {
  Mutex mutex;
  std::vector<RRef<Watched>> refs TREADLE_GUARDED_BY(mutex);
};

Watched make(Here<Counter> gone) { return Watched(gone); }
Watched makeAfterGate(Here<Gate> gate, Here<Counter> gone) {
  blocking([&] { gate->wait(); });
  return Watched(gone);
}
RRef<Watched> makeHere(CallContext& call, Here<Counter> gone) { return call.worker().makeRRef(Watched(gone)); }
void keep(Here<Shelf> shelf, RRef<Watched> ref) {
  MutexLock lock(shelf->mutex);
  shelf->refs.push_back(std::move(ref));
}
void keepAt(CallContext& call, const std::string& where, Here<Shelf> shelf, const RRef<Watched>& ref) {
  call.worker().call<&keep>(where, shelf, ref);
}
void drop(Here<Shelf> shelf) {
  std::vector<RRef<Watched>> dropped;
  MutexLock lock(shelf->mutex);
  dropped.swap(shelf->refs);
}
int aliveFor(const RRef<Watched>& ref) { return ref.call<&Watched::alive>(); }
int aliveOnShelf(Here<Shelf> shelf) {
  RRef<Watched> ref;
  {
    MutexLock lock(shelf->mutex);
    ref = shelf->refs.back();
  }
  return ref.call<&Watched::alive>();
}
void throwAway(const RRef<Watched>&) { throw std::runtime_error("not wanted"); }
std::vector<RRef<Watched>> twice(RRef<Watched> ref) { return {ref, ref}; }

Functions functions() {
  Functions all;
  all.add<&make>("make").add<&makeAfterGate>("makeAfterGate").add<&makeHere>("makeHere").add<&keep>("keep");
  all.add<&keepAt>("keepAt").add<&drop>("drop").add<&aliveFor>("aliveFor").add<&aliveOnShelf>("aliveOnShelf");
  all.add<&throwAway>("throwAway").add<&twice>("twice");
  all.addType<Watched, uint64_t>("Watched").add<&Watched::alive>("Watched.alive");
  return all;
}

class ReferenceLifetime : public ::testing::Test {
 protected:
  // Nothing is owned, held or on its way any more, anywhere.
  void nothingIsLeft() {
    for (size_t i = 0; i < job.size(); ++i)
      EXPECT_TRUE(test::eventually([&] {
        Metrics now = job[i].metrics();
        return now.valuesOwned + now.forksOfOwned + now.referencesHeld + now.referencesPending == 0;
      })) << job.names()[i];
  }

  Counter gone;  // these outlive the job
  std::deque<Counter> counters;
  Gate gate;
  Shelf shelves[3];
  WorkerJob job{{"a", "b", "c"}, functions()};
  Worker &a = job[0], &b = job[1], &c = job[2];
};

TEST_F(ReferenceLifetime, endsWithTheLastReferenceOfTheWorkerThatAskedForTheValue) {
  for (const char* owner : {"a", "b"}) {
    Counter& destroyed = counters.emplace_back();
    RRef<Watched> ref = a.remote<&make>(owner, destroyed);
    RRef<Watched> copy = ref;
    EXPECT_EQ(1, ref.call<&Watched::alive>());
    ref = {};
    EXPECT_EQ(1, copy.call<&Watched::alive>());
    copy = {};
    destroyed.waitFor(1);
    nothingIsLeft();
    EXPECT_EQ(1, destroyed.count());
  }
}

TEST_F(ReferenceLifetime, ofMadeOwnedAndReturnedObjectsIsTheSame) {
  a.make<Watched>("b", reinterpret_cast<uint64_t>(&gone)).waitUntilReady();
  gone.waitFor(1);
  { RRef<Watched> own = a.makeRRef(Watched(gone)); }
  EXPECT_EQ(2, gone.count());  // nobody else knew of it
  { RRef<Watched> returned = a.call<&makeHere>("b", gone); }
  gone.waitFor(3);
  { RRef<RRef<Watched>> nested = a.remote<&makeHere>("b", gone); }
  gone.waitFor(4);
  nothingIsLeft();
  EXPECT_EQ(4, gone.count());
}

TEST_F(ReferenceLifetime, doesNotEndWhileAnyWorkerHoldsOne) {
  RRef<Watched> ref = a.remote<&make>("b", gone);
  a.call<&keep>("c", shelves[2], ref);
  a.call<&keep>("b", shelves[1], ref);
  ref = {};
  a.call<&drop>("b", shelves[1]);
  EXPECT_EQ(1, a.call<&aliveOnShelf>("c", shelves[2]));
  EXPECT_EQ(0, gone.count());
  a.call<&drop>("c", shelves[2]);
  gone.waitFor(1);
  nothingIsLeft();
}

TEST_F(ReferenceLifetime, passesThroughAWorkerThatForgetsAtOnce) {
  RRef<Watched> ref = a.remote<&make>("a", gone);
  a.call<&keepAt>("b", "c", shelves[2], ref);  // b holds nothing afterwards
  ref = {};
  EXPECT_EQ(1, b.call<&aliveOnShelf>("c", shelves[2]));
  EXPECT_EQ(0, gone.count());
  b.call<&drop>("c", shelves[2]);
  gone.waitFor(1);
  nothingIsLeft();
}

// The value is not even made when its reference has been passed on twice and dropped by all but the last.
TEST_F(ReferenceLifetime, beginsWithAReferenceThatIsPassedOnBeforeTheOwnerConfirmed) {
  RRef<Watched> ref = a.remote<&makeAfterGate>("b", gate, gone);
  EXPECT_FALSE(ref.confirmedByOwner());
  a.call<&keepAt>("a", "c", shelves[2], ref);
  ref = {};
  gate.open();
  EXPECT_EQ(1, a.call<&aliveOnShelf>("c", shelves[2]));
  EXPECT_EQ(0, gone.count());
  a.call<&drop>("c", shelves[2]);
  gone.waitFor(1);
  nothingIsLeft();
}

TEST_F(ReferenceLifetime, endsAlsoOfAValueThatNobodyWaitedFor) {
  { RRef<Watched> ref = a.remote<&makeAfterGate>("b", gate, gone); }
  EXPECT_EQ(0, gone.count());
  gate.open();
  gone.waitFor(1);
  nothingIsLeft();
}

TEST_F(ReferenceLifetime, isNotProlongedByCallsThatFail) {
  RRef<Watched> ref = a.remote<&make>("b", gone);
  EXPECT_THROW(a.call<&throwAway>("c", ref), RemoteError);
  EXPECT_THROW((a.callNamed<int>("c", "no such function", ref)), NotFoundError);
  EXPECT_THROW((a.callNamed<int>("c", "make", ref)), StateError);
  EXPECT_THROW((a.call<&aliveFor>("d", ref)), NotFoundError);
  EXPECT_THROW((a.callNamed<int>("c", "aliveFor", ref, RRef<Watched>())), ArgumentError);
  EXPECT_EQ(2U, a.call<&twice>("c", ref).size());
  EXPECT_EQ(0, gone.count());
  ref = {};
  gone.waitFor(1);
  nothingIsLeft();
}

TEST_F(ReferenceLifetime, endsWithTheJobForWhatIsStillHeld) {
  RRef<Watched> ref = a.remote<&make>("b", gone);
  a.call<&keep>("c", shelves[2], ref);
  ref.waitUntilReady();
  job.shutdown();
  EXPECT_EQ(1, gone.count());
  EXPECT_THROW(ref.call<&Watched::alive>(), StateError);
}

// One thread's random life: it makes, passes on, uses, keeps and drops references to values of all workers.
void live(Worker& worker, Shelf* shelves, Counter& gone, std::atomic<int>& made, test::Random& random) {
  const char* names[] = {"a", "b", "c"};
  std::vector<RRef<Watched>> refs;
  for (int i = 0; i < 40; ++i) {
    size_t to = test::pick(random, 3), shelf = test::pick(random, 3);
    if (refs.empty() || test::pick(random, 4) == 0) {
      ++made;
      refs.push_back(worker.remote<&make>(names[to], gone));
      continue;
    }
    RRef<Watched>& ref = refs[test::pick(random, refs.size())];
    switch (test::pick(random, 6)) {
      case 0: worker.async<&keep>(names[shelf], shelves[shelf], ref); break;
      case 1: worker.async<&keepAt>(names[to], names[shelf], shelves[shelf], ref); break;
      case 2: worker.async<&drop>(names[shelf], shelves[shelf]); break;
      case 3: EXPECT_EQ(1, worker.call<&aliveFor>(names[to], ref)) << "destroyed too early"; break;
      case 4: ref = worker.call<&twice>(names[to], ref).at(1); break;
      default: std::swap(ref, refs.back()); refs.pop_back();
    }
  }
}

TEST_F(ReferenceLifetime, endsOnceForEachValueOfManyPassedAtRandom) {
  test::forSeeds(8, [&](test::Random& random) {
    Counter& destroyed = counters.emplace_back();
    std::atomic<int> made = 0;
    std::vector<std::thread> threads;
    for (size_t i = 0; i < 3; ++i)
      threads.emplace_back([&, i, seed = random()] {
        test::Random own(seed);
        live(job[i], shelves, destroyed, made, own);
      });
    for (auto& thread : threads) thread.join();
    for (size_t i = 0; i < 3; ++i)  // calls may still be under way that put something on a shelf
      EXPECT_TRUE(test::eventually([&] {
        Metrics now = job[i].metrics();
        return now.callsPending + now.handlersRunning == 0;
      }));
    for (size_t i = 0; i < 3; ++i) a.call<&drop>(job.names()[i], shelves[i]);
    nothingIsLeft();
    destroyed.waitFor(made);  // a value leaves the tables a moment before it is destroyed
    EXPECT_EQ(made.load(), destroyed.count());
  });
}

TEST(ReferenceLimit, isOfEachPeerAndEndsWithTheReferencesThatGo) {
  constexpr size_t kLimit = 4;
  Counter gone;
  WorkerJob job({"a", "b"}, functions(), [](JoinOptions& options) { options.referenceLimit = kLimit; });
  std::vector<RRef<Watched>> held;
  for (size_t i = 0; i < kLimit; ++i) {
    held.push_back(job[0].remote<&make>("b", gone));
    EXPECT_EQ(1, held.back().call<&Watched::alive>());
  }
  RRef<Watched> asked = job[0].remote<&make>("b", gone);
  const std::string refusal = test::messageOf<ResourceError>([&] { asked.waitUntilReady(); });
  EXPECT_TRUE(test::contains(refusal, "JoinOptions::referenceLimit")) << refusal;
  EXPECT_TRUE(test::contains(refusal, "rank 0")) << refusal;
  test::messageOf<ResourceError>([&] { job[0].call<&makeHere>("b", gone); });  // given back, it would be one more
  EXPECT_EQ(1, job[0].remote<&make>("a", gone).call<&Watched::alive>()) << "its own are its own business";
  EXPECT_EQ(1, job[1].remote<&make>("a", gone).call<&Watched::alive>());
  held.clear();
  asked = {};
  EXPECT_TRUE(test::eventuallyReleased([&] { return job[1].metrics().forksOfOwned == 0; }));
  EXPECT_EQ(1, job[0].remote<&make>("b", gone).call<&Watched::alive>());
}

// References are not bound to the life of their worker: threads that have some may use them at the very moment when it
// ends, and later.
TEST(ReferencesOfAWorkerThatEnds, endWithErrorsAndDoNoHarm) {
  for (int round = 0; round < 20; ++round) {
    Counter gone;
    test::Counter calls;
    std::vector<std::thread> threads;
    {
      WorkerJob job{{"a", "b"}, functions()};
      for (int i = 0; i < 4; ++i)
        threads.emplace_back([&, ref = job[0].remote<&make>(i % 2 == 0 ? "a" : "b", gone)]() mutable {
          std::vector<Future<int>> futures;
          try {
            for (;;) {
              RRef<Watched> copy = ref.call<&Watched::alive>() == 1 ? ref : RRef<Watched>();
              futures.push_back(copy.async<&Watched::alive>());
              (void)copy.owner();
              calls.add();
            }
          } catch (const Error&) {}
          EXPECT_THROW(ref.call<&Watched::alive>(), Error);
          for (Future<int>& future : futures) future.cancel();
        });
      calls.waitFor(20);
      job.kill(0);
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace
}  // namespace treadle::reference_lifetime_test

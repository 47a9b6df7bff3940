// A worker that goes while others need it: whatever waits for it ends with its name, the rest goes on.

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <array>

#include "tests/core/worker/here.h"
#include "tests/core/worker/peer_process.h"
#include "tests/support/launch_environment.h"
#include "tests/support/readable.h"
#include "tests/support/status_socket.h"
#include "treadle/core/cluster/status_socket.h"
#include "treadle/core/io/socket.h"

namespace treadle::loss_test {
namespace {

using test::contains;
using test::Counter;
using test::Gate;
using test::Here;
using test::messageOf;
using test::statusOf;
using test::WorkerJob;
using namespace std::chrono_literals;

int add(int a, int b) { return a + b; }
struct Promised {
  Gate begun;
  std::optional<Promise<int>> promise{std::in_place};
};
Future<int> answerByPromise(Here<Promised> promised) {
  Future<int> future = promised->promise->future();
  promised->begun.open();
  return future;
}
struct Number {
  explicit Number(int n) : number(n) {}
  int get() { return number; }
  int number;
};
std::string nameOfOwner(const RRef<int>& ref) { return ref.owner().name; }
std::string passOn(CallContext& call, const RRef<int>& ref) { return call.worker().call<&nameOfOwner>("a", ref); }
void reportLossOfB() { raise(peerLost("b", "worker 'b' (rank 1) was lost: its machine is off")); }
int getOf(const RRef<Number>& ref) { return ref.call<&Number::get>(); }
// Until its own worker leaves.
void callsOnAndOn(CallContext& call, const std::string& peer, Here<Counter> begun) {
  begun->add();
  while (true) call.worker().call<&add>(peer, 1, 2);
}
// Waits until its caller is lost.
void watchCaller(CallContext& call, Here<Counter> begun, Here<Counter> saw) {
  begun->add();
  blocking([&] { EXPECT_TRUE(test::eventually([&] { return call.cancelled(); })); });
  saw->add();
}

Functions functions() {
  Functions all;
  all.add<&add>("add").add<&answerByPromise>("answerByPromise").addType<Number, int>("Number").add<&getOf>("getOf");
  all.add<&reportLossOfB>("reportLossOfB").add<&callsOnAndOn>("callsOnAndOn");
  all.add<&Number::get>("Number.get").add<&watchCaller>("watchCaller");
  return all;
}

// Stands for `treadle run`: receives the messages of this process's workers from now on.
struct Launcher {
  test::StatusSocket socket;
  test::LaunchEnvironment environment{{{cluster::kStatusVariable, socket.variableOf(socket.worker())}}};
};

class Loss : public ::testing::Test {
 protected:
  // What every failure for the loss of b says.
  static void namesB(const Status& why) {
    EXPECT_EQ("b", why.worker());
    EXPECT_TRUE(contains(why.message(), "worker 'b' (rank 1)"));
  }

  Promised promised;  // outlive the job
  Counter begun, saw;
  WorkerJob job{{"a", "b", "c"}, functions()};
  Worker &a = job[0], &c = job[2];
};

TEST_F(Loss, endsTheCallsThatWaitForTheLostWorker) {
  Future<int> waiting = a.async<&answerByPromise>("b", promised);
  RRef<int> ref = c.remote<&answerByPromise>("b", promised);
  Future<int> fetched = ref.toHereAsync();
  promised.begun.wait();
  job.kill(1);
  Status why = statusOf<PeerLostError>([&] { waiting.wait(); });
  namesB(why);
  EXPECT_EQ("answerByPromise", why.function());
  EXPECT_TRUE(contains(why.message(), "without shutdown()"));
  namesB(statusOf<PeerLostError>([&] { fetched.wait(); }));
}

// And not that a call of the handler failed because its worker has left. Farewells go out in the order of ranks, so `c`
// hears b's before `a`. Several jobs, as it is a matter of microseconds.
TEST(LossOfACallee, isWhatTheCallerHearsWhateverTheHandlerCalled) {
  for (const char* peer : {"c", "a", "b"}) {
    for (int i = 0; i < 20; ++i) {
      Counter begun;
      WorkerJob job{{"c", "a", "b"}, functions()};
      Future<void> waiting = job[1].async<&callsOnAndOn>("b", peer, begun);
      begun.waitFor(1);
      job.kill(2);
      EXPECT_EQ("b", statusOf<PeerLostError>([&] { waiting.wait(); }).worker()) << peer;
    }
  }
}

TEST_F(Loss, failsLaterCallsAtOnceAndLeavesTheOthersAlone) {
  job.kill(1);
  // It takes each of the others a moment to hear of it.
  EXPECT_TRUE(test::eventually([&] {
    try {
      a.call<&add>("b", 1, 2);
    } catch (const PeerLostError&) {
      return true;
    }
    return false;
  }));
  namesB(statusOf<PeerLostError>([&] { a.call<&add>("b", 1, 2); }));
  namesB(statusOf<PeerLostError>([&] { a.async<&add>(1, 1, 2).wait(); }));
  namesB(statusOf<PeerLostError>([&] { a.remote<&add>("b", 1, 2).toHere(); }));
  namesB(statusOf<PeerLostError>([&] { a.make<Number>("b", 1).waitUntilReady(); }));
  EXPECT_EQ("b", a.peer(1).name);
  EXPECT_EQ(3, a.call<&add>("c", 1, 2));
  EXPECT_EQ(3, c.call<&add>("a", 1, 2));
}

TEST_F(Loss, ofAnOwnerFailsTheReferencesToItsValues) {
  RRef<Number> ref = a.make<Number>("b", 5);
  EXPECT_EQ(5, a.call<&getOf>("c", ref));
  Future<int> waiting = a.async<&answerByPromise>("b", promised);
  job.kill(1);
  messageOf<PeerLostError>([&] { waiting.wait(); });
  namesB(statusOf<PeerLostError>([&] { ref.call<&Number::get>(); }));
  namesB(statusOf<PeerLostError>([&] { ref.waitUntilReady(); }));
  namesB(statusOf<PeerLostError>([&] { RRef<int>(handleOf(ref)).toHere(); }));
  namesB(statusOf<PeerLostError>([&] { ref.remote<&Number::get>().toHere(); }));
  namesB(statusOf<PeerLostError>([&] { a.call<&getOf>("c", ref); }));
  EXPECT_EQ("b", ref.owner().name);
  ref = {};
  EXPECT_TRUE(
      test::eventuallyReleased([&] { return a.metrics().referencesHeld + a.metrics().referencesPending == 0; }));
}

// Only the link between a and b is cut. The caller knows that b was never asked for the value, so the reference goes
// nowhere: c still has b and would wait there.
TEST_F(Loss, beforeARequestIsSentKeepsItsReferenceFromBeingPassedOn) {
  auto toB = [&] { return a.engine().membership().outgoing(1); };
  valueOrThrow(toB())->close(peerLost("b", "worker 'b' (rank 1) was lost: the test cut this link"));
  EXPECT_TRUE(test::eventually([&] { return !toB().ok(); }));
  const uint64_t before = c.metrics().callsHandled;
  RRef<Number> made = a.make<Number>("b", 5);
  namesB(statusOf<PeerLostError>([&] { a.call<&getOf>("c", made); }));
  namesB(statusOf<PeerLostError>([&] { made.call<&Number::get>(); }));
  RRef<int> returned = a.remote<&add>("b", 1, 2);
  namesB(statusOf<PeerLostError>([&] { a.call<&add>("c", returned, 1); }));
  EXPECT_EQ(before, c.metrics().callsHandled) << "c was asked for something that needs a value of b";
  EXPECT_EQ(3, a.call<&add>("c", 1, 2));
  job.kill(1);  // after a loss the job cannot end well
}

TEST_F(Loss, freesTheValuesThatOnlyTheLostWorkerReferredTo) {
  RRef<Number> ref = job[1].make<Number>("a", 5);
  ref.waitUntilReady();
  EXPECT_EQ(1U, a.metrics().valuesOwned);
  job.kill(1);
  EXPECT_TRUE(test::eventuallyReleased([&] { return a.metrics().valuesOwned == 0; }));
  messageOf<StateError>([&] { ref.call<&Number::get>(); });  // the reference of the worker that is no more
}

TEST_F(Loss, tellsTheHandlersThatWorkForTheLostWorker) {
  Future<void> one = job[1].async<&watchCaller>("a", begun, saw), two = job[1].async<&watchCaller>("c", begun, saw);
  begun.waitFor(2);
  job.kill(1);
  saw.waitFor(2);
  messageOf<CancelledError>([&] { one.wait(); });  // its own worker has left
  messageOf<CancelledError>([&] { two.wait(); });
}

TEST_F(Loss, endsBarrierAndShutdownOfTheOthers) {
  Future<void> inBarrier = a.spawn([&] { a.barrier(); });
  job.kill(1);
  Status why = statusOf<PeerLostError>([&] { inBarrier.wait(); });
  EXPECT_EQ("b", why.worker());
  EXPECT_TRUE(contains(why.message(), "the barrier"));
  for (Worker* worker : {&a, &c}) {
    why = statusOf<PeerLostError>([&] { worker->shutdown(); });
    EXPECT_EQ("b", why.worker());
    EXPECT_TRUE(contains(why.message(), "the shutdown"));
    EXPECT_TRUE(contains(why.message(), "worker 'b' (rank 1) left the job: it ended without shutdown()"));
  }
}

// It may hear of a loss from a peer first, and end over that before its own connection says so.
TEST_F(Loss, thatAPeerReportsIsWhyAWorkerEnds) {
  Future<int> waiting = c.async<&answerByPromise>("a", promised);
  promised.begun.wait();
  namesB(statusOf<PeerLostError>([&] { a.call<&reportLossOfB>("c"); }));
  Launcher launcher;
  job.kill(0);
  EXPECT_TRUE(cluster::tellsGivingUp(launcher.socket.received()));
  const std::string why = messageOf<PeerLostError>([&] { waiting.wait(); });
  EXPECT_TRUE(contains(why, "worker 'a' (rank 0) left the job: ") && contains(why, "its machine is off")) << why;
}

TEST_F(Loss, ofAWorkerThatEndsByItselfIsToldToTheLauncherFirst) {
  Launcher launcher;
  job.kill(0);
  const std::string told = launcher.socket.received();
  EXPECT_TRUE(cluster::tellsFailure(told)) << told;
}

// A handler's promise may be kept, or dropped, by a thread that knows nothing of the worker's end.
TEST_F(Loss, ofAWorkerWhosePromiseIsKeptLaterHarmsNobody) {
  Future<int> one = a.async<&answerByPromise>("b", promised);
  promised.begun.wait();
  job.kill(1);
  messageOf<PeerLostError>([&] { one.wait(); });
  promised.promise->set(5);
}

TEST_F(Loss, ofOnesOwnWorkerEndsWhatWaitsThere) {
  Future<int> waiting = job[1].async<&answerByPromise>("a", promised);
  RRef<Number> ref = job[1].make<Number>("a", 5), own = job[1].makeRRef(Number(6));
  job.kill(1);
  messageOf<CancelledError>([&] { waiting.wait(); });
  std::string why = messageOf<StateError>([&] { ref.call<&Number::get>(); });
  EXPECT_TRUE(contains(why, "has left its job"));
  messageOf<StateError>([&] { own.localValue(); });
  messageOf<StateError>([&] { ref.owner(); });
}

// ---- a peer in a process of its own

TEST(LostProcess, isNoticedAtOnceByWhatWaitsForIt) {
  uint16_t port = test::freePort();
  io::Process process = test::startPeer(port);
  JoinOptions join = test::joinOptions("parent", 0, 2, port, test::peerFunctions());
  join.heartbeatTimeout = 1h;  // heartbeats would not tell
  auto worker = Worker::join(join);
  EXPECT_EQ(5, worker->call<&test::peerAdd>("child", 2, 3));
  RRef<int> ref = worker->remote<&test::peerAdd>("child", 2, 3);
  Future<void> waiting = worker->async<&test::peerWait>("child");
  Status why = statusOf<PeerLostError>([&] { worker->call<&test::peerDie>("child"); });
  EXPECT_EQ("child", why.worker());
  EXPECT_EQ("die", why.function());
  EXPECT_TRUE(contains(why.message(), "'die' on worker 'child' (rank 1)"));
  EXPECT_EQ("child", statusOf<PeerLostError>([&] { waiting.wait(); }).worker());
  EXPECT_EQ("child", statusOf<PeerLostError>([&] { ref.toHere(); }).worker());
  EXPECT_EQ("child", statusOf<PeerLostError>([&] { worker->shutdown(); }).worker());
}

// All workers of a job have the same limit as a rule: who wakes finds its peers silent for longer too.
TEST(StoppedProcess, isGivenUpAfterTheLimit) {
  uint16_t port = test::freePort();
  io::Process process = test::startPeer(port, {{"TREADLE_TEST_HEARTBEAT_TIMEOUT", "3"}});
  JoinOptions join = test::joinOptions("parent", 0, 2, port, test::peerFunctions());
  join.heartbeatTimeout = 3s;
  auto worker = Worker::join(join);
  Future<void> waiting = worker->with({.timeout = kNoTimeout}).async<&test::peerWait>("child");
  process.signal(SIGSTOP);
  ASSERT_TRUE(test::eventually([&] { return waiting.ready(); }));
  Status why = statusOf<PeerLostError>([&] { waiting.wait(); });
  EXPECT_EQ("child", why.worker());
  EXPECT_TRUE(contains(why.message(), "nothing was heard of it"));
  process.signal(SIGCONT);
  const std::string learnt = "'parent' (rank 0) was lost: it has given this worker up: nothing was heard of it";
  std::string said;
  while (!contains(said, learnt)) {
    ASSERT_TRUE(test::readable(process.standardError().get(), "what the child learnt")) << said;
    std::array<char, 4096> bytes;
    const ssize_t size = ::read(process.standardError().get(), bytes.data(), bytes.size());
    if (size <= 0) break;
    said.append(bytes.data(), static_cast<size_t>(size));
  }
  EXPECT_TRUE(contains(said, learnt));
}

// Who passes it on and who is called need nothing of the owner: its bookkeeping may come later.
TEST(StoppedProcess, doesNotHoldUpACallThatIsGivenAReferenceToItsValue) {
  const uint16_t port = test::freePort();
  io::Process process = test::startPeer(port, {}, 3);
  const Functions functions = test::peerFunctions().add<&nameOfOwner>("nameOfOwner").add<&passOn>("passOn");
  auto joinAs = [&](const char* name, int rank) {
    return std::async(std::launch::async,
                      [=] { return Worker::join(test::joinOptions(name, rank, 3, port, functions)); });
  };
  auto joining = joinAs("a", 0), other = joinAs("b", 2);
  std::shared_ptr<Worker> a = joining.get(), b = other.get();
  RRef<int> made = a->remote<&test::peerAdd>("child", 2, 3);
  EXPECT_EQ(5, made.toHere());
  process.signal(SIGSTOP);
  EXPECT_EQ("child", a->call<&nameOfOwner>("b", made));
  EXPECT_EQ("child", a->call<&passOn>("b", made)) << "nor when it is passed on before its owner knows of it";
  process.signal(SIGCONT);
  EXPECT_EQ(5, made.toHere());
}

}  // namespace
}  // namespace treadle::loss_test

// What programs do that they should rather not: each costs at most that program a clear error, and never its job.

#include <sys/wait.h>
#include <unistd.h>

#include "tests/core/worker/here.h"

namespace treadle::misuse_test {
namespace {

using test::Counter;
using test::Gate;
using test::Here;
using test::messageOf;
using test::WorkerJob;

int twice(int n) { return 2 * n; }

// Its end takes until the gate opens.
struct Slow {
  explicit Slow(uint64_t begun, uint64_t gate) : begun{}, gate{} {
    this->begun.address = begun, this->gate.address = gate;
  }
  ~Slow() {
    begun->add();
    gate->wait();
  }
  Here<Counter> begun;
  Here<Gate> gate;
};

Functions functions() {
  Functions all;
  all.add<&twice>("twice").add<&test::openGate>("openGate").addType<Slow, uint64_t, uint64_t>("Slow");
  return all;
}

TEST(Misuse, aDestructorThatTakesLongHoldsUpNobodyElse) {
  Counter begun;
  Gate gate;
  WorkerJob job({"a", "b"}, functions());
  auto address = [](const auto& object) { return reinterpret_cast<int64_t>(&object); };
  RRef<Slow> slow = job[0].make<Slow>("b", address(begun), address(gate));
  slow.waitUntilReady();
  slow = {};
  begun.waitFor(1);
  EXPECT_EQ(4, job[0].call<&twice>("b", 2));
  gate.open();
}

TEST(Misuse, aForkedChildHasNoPartInTheJob) {
  WorkerJob job({"a", "b"}, functions());
  pid_t child = ::fork();
  if (child == 0) {
    bool refused = false;
    try {
      job[0].shutdown();
    } catch (const StateError&) {
      refused = true;
    }
    job.kill(0);
    ::_exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(child, ::waitpid(child, &status, 0));
  EXPECT_EQ(0, WEXITSTATUS(status));
  EXPECT_EQ(4, job[0].call<&twice>("b", 2));
}

TEST(Misuse, aWorkerThatHasLeftMayBeHeldWhileTheNextOneJoins) {
  JoinOptions options = test::joinOptions("a", 0, 1, test::freePort(), functions());
  auto first = Worker::join(options);
  first->shutdown();
  auto second = Worker::join(options);
  EXPECT_EQ(4, second->call<&twice>("a", 2));
  second->shutdown();
}

TEST(Misuse, aReferenceMayOutliveTheWorkerAndBeAskedForAfterIt) {
  JoinOptions options = test::joinOptions("a", 0, 1, test::freePort(), functions());
  RRef<int> late;
  {
    auto worker = Worker::join(options);
    RRef<int> kept = worker->remote<&twice>("a", 1);
    worker->shutdown();
    try {
      late = worker->remote<&twice>("a", 2);
    } catch (const StateError&) {}
  }
  late = {};  // the sanitizer would see a notice to nobody
}

TEST(Misuse, whatIsNothingIsRefused) {
  WorkerJob job({"a"}, functions());
  messageOf<StateError>([] { whenAll(std::vector<Future<int>>(1)); });
  messageOf<ArgumentError>([&] { job[0].makeRRef(std::shared_ptr<Counter>()); });
  for (int priority : {-129, 128})
    EXPECT_TRUE(test::contains(
        messageOf<ArgumentError>([&] { job[0].with({.priority = priority}).call<&twice>("a", 2); }), "-128 to 127"));
  for (int priority : {-128, 127}) EXPECT_EQ(4, job[0].with({.priority = priority}).call<&twice>("a", 2));
}

}  // namespace
}  // namespace treadle::misuse_test

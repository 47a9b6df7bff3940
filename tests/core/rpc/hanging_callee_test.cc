// A callee that answers nothing, and callers that give up one after the other: what each call costs its caller does not
// grow with the number of the others.

#include <array>
#include <atomic>

#include "tests/support/gate.h"
#include "tests/support/local_job.h"
#include "tests/support/sanitizer.h"
#include "treadle/core/rpc/engine.h"

namespace treadle::rpc::hanging_callee_test {
namespace {

using namespace std::chrono_literals;

void hang(uint64_t gate) { reinterpret_cast<test::Gate*>(gate)->wait(); }
uint64_t echo(uint64_t number) { return number; }

class HangingCallee : public ::testing::Test {
 protected:
  ~HangingCallee() override {
    isReleased.open();
    for (auto& engine : engines) engine->close(cancelled("the test is over"));
    job.reset();
  }

  Engine& caller() { return *engines[0]; }

  template <auto F>
  void send(int rank, const char* function, uint64_t argument, Duration timeout,
            UniqueFunction<void(Result<Decoder*>)> complete) {
    OutgoingCall call;
    call.rank = rank;
    call.function = function;
    call.signature = Signature<F>::text();
    call.options.timeout = timeout;
    call.encode = [argument](Encoder& encoder) { encoder.writer().number(argument); };
    call.complete = std::move(complete);
    caller().send(std::move(call));
  }

  test::Gate isReleased;  // handlers wait at it until the end
  std::array<std::unique_ptr<Engine>, 2> engines;
  std::unique_ptr<test::LocalJob> job = std::make_unique<test::LocalJob>(2, [this](test::LocalWorker& worker) {
    Functions functions;
    functions.add<&hang>("hang").add<&echo>("echo");
    auto& engine = engines[static_cast<size_t>(worker.membership->self().rank)];
    engine = std::make_unique<Engine>(*worker.membership, *worker.reactor, *worker.executor, functions, nullptr,
                                      EngineOptions{}, nullptr);
    worker.membership->setHandler(link::Subject::kRpc, *engine);
  });
};

// Each call has a deadline of its own. Those that were given up stay in the caller's table, as the callee answers none
// of them before the end.
TEST_F(HangingCallee, costsEachCallerThatGivesUpAFewLooksAtItsOwnCall) {
  constexpr int kCalls = test::kSanitized ? 5'000 : 100'000;
  test::Counter ended, answered;
  std::atomic<int> late = 0;
  for (int i = 0; i < kCalls; ++i)
    send<&hang>(1, "hang", reinterpret_cast<uint64_t>(&isReleased), 1s + i * 20us, [&](Result<Decoder*> result) {
      if (result.status().code() == Code::kDeadlineExceeded) ++late;
      ended.add();
    });
  ended.waitFor(kCalls);
  EXPECT_EQ(kCalls, late);
  EXPECT_EQ(0U, caller().counts().pending);
  const uint64_t looks = caller().counts().deadlineLooks;
  EXPECT_GE(looks, uint64_t{kCalls}) << "looks are not counted any more";
  EXPECT_LE(looks, 5 * uint64_t{kCalls});
  send<&echo>(0, "echo", 7, test::kHangs, [&](Result<Decoder*> result) {
    EXPECT_TRUE(result.ok()) << result.status().toString();
    answered.add();
  });
  answered.waitFor(1);
  isReleased.open();
  EXPECT_TRUE(test::eventually([&] { return engines[1]->counts().running == 0; }));
}

}  // namespace
}  // namespace treadle::rpc::hanging_callee_test

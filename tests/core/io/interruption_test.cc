#include "treadle/core/io/interruption.h"

#include <sys/eventfd.h>

#include <thread>

#include "gtest/gtest.h"
#include "tests/support/free_port.h"
#include "tests/support/gate.h"
#include "treadle/core/io/retry.h"

namespace treadle::io::interruption_test {
namespace {

// An event that never comes by itself.
class Interrupted : public testing::Test {
 protected:
  static Fd makeEvent() { return Fd(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)); }
  static void come(const Fd& event) { ASSERT_EQ(0, ::eventfd_write(event.get(), 1)); }
  static bool waitForEvent(const Fd& event) { return waitFor(event.get(), POLLIN, test::patience()); }

  const Fd event = makeEvent(), interruption = makeEvent();
};

TEST_F(Interrupted, waitEndsWithoutItsEvent) {
  Interruption waits(interruption.get(), [] { return true; });
  std::thread later([&] { come(interruption); });
  EXPECT_FALSE(waitForEvent(event));
  later.join();
  EXPECT_FALSE(waitForEvent(event)) << "and so does each one after it";
  come(event);
  EXPECT_TRUE(waitForEvent(event)) << "but not one whose event is there";
}

TEST_F(Interrupted, triesToConnectEnd) {
  const Address nobody = *Address::tcp("127.0.0.1", test::freePort());
  Interruption waits(interruption.get(), [] { return true; });
  come(interruption);
  const Code code = connectWithRetry(nobody, test::patience()).status().code();
  EXPECT_TRUE(code == Code::kPeerLost || code == Code::kDeadlineExceeded) << "refused, or interrupted before that";
  Duration interval{};
  EXPECT_FALSE(waitForRetry(interval, test::patience()));
}

TEST_F(Interrupted, waitGoesOnWhenNothingHasComeAfterAll) {
  int looks = 0;
  Interruption waits(interruption.get(), [&] { return ++looks > 1; });
  come(interruption);
  std::thread later([&] { come(event); });
  EXPECT_TRUE(waitForEvent(event));
  later.join();
  EXPECT_FALSE(waitFor(makeEvent().get(), POLLIN, Clock::now()));
  EXPECT_LE(looks, 1) << "what is not to be heeded is not looked at again";
  EXPECT_FALSE(waits.came());
  Duration interval{};
  EXPECT_TRUE(waitForRetry(interval, test::patience()));
}

TEST_F(Interrupted, waitsAreThoseOfItsThreadAndItsLifetime) {
  come(interruption);
  {
    Interruption waits(interruption.get(), [] { return true; });
    std::thread other([&] { EXPECT_TRUE(waitForEvent(event)); });
    come(event);
    other.join();
  }
  EXPECT_TRUE(waitForEvent(event));
  EXPECT_EQ(nullptr, Interruption::here());
}

TEST_F(Interrupted, waitsWatchTheInnermostOne) {
  Interruption outer(interruption.get(), [] { return true; });
  {
    Interruption none(-1, [] { return true; });
    come(interruption);
    come(event);
    EXPECT_TRUE(waitForEvent(event));
    EXPECT_FALSE(none.came());
  }
  EXPECT_FALSE(waitForEvent(makeEvent()));
}

}  // namespace
}  // namespace treadle::io::interruption_test

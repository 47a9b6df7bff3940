#include "treadle/core/base/gate.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>
#include <vector>

#include "tests/support/gate.h"

namespace treadle::base::gate_test {
namespace {

TEST(Gate, letsInUntilItIsClosed) {
  Gate gate;
  {
    Gate::Use one(gate), other(gate);
    EXPECT_TRUE(one && other);
  }
  gate.close();
  EXPECT_FALSE(Gate::Use(gate));
  gate.close();  // again, without harm
  EXPECT_FALSE(Gate::Use(gate));
  EXPECT_FALSE(Gate::Use());
}

TEST(Gate, knowsWhoIsInside) {
  Gate gate;
  EXPECT_FALSE(Gate::insideHere());
  {
    Gate::Use use(gate);
    Gate::Use moved = std::move(use);
    EXPECT_FALSE(use);  // NOLINT: what was moved from is empty
    EXPECT_TRUE(moved && Gate::insideHere());
    std::thread([] { EXPECT_FALSE(Gate::insideHere()); }).join();
  }
  EXPECT_FALSE(Gate::insideHere());
  gate.close();
  Gate::Use late(gate);
  EXPECT_FALSE(Gate::insideHere()) << "nobody who was not let in is inside";
}

TEST(Gate, isClosedWhenAllAreOut) {
  Gate gate;
  test::Gate in, closing;
  std::atomic<bool> out = false;
  std::thread user([&] {
    Gate::Use use(gate);
    in.open();
    closing.wait();
    while (Gate::Use(gate)) {}  // until `close` has begun
    out = true;
  });
  in.wait();
  closing.open();
  gate.close();
  EXPECT_TRUE(out);
  user.join();
}

// What is behind the gate goes as soon as it is closed: nobody may be seen there after that.
TEST(Gate, keepsWhatIsBehindItForThoseInside) {
  for (int round = 0; round < 200; ++round) {
    Gate gate;
    auto behind = std::make_unique<int>(5);
    std::vector<std::thread> users;
    test::Counter begun;
    for (int i = 0; i < 4; ++i)
      users.emplace_back([&] {
        begun.add();
        while (Gate::Use use{gate}) EXPECT_EQ(5, *behind);
      });
    begun.waitFor(4);
    gate.close();
    behind.reset();
    for (std::thread& user : users) user.join();
  }
}

}  // namespace
}  // namespace treadle::base::gate_test

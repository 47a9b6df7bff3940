#include "treadle/core/base/spare_bytes.h"

#include <gtest/gtest.h>

#include <thread>

namespace treadle::test::spare_bytes_test {
namespace {

constexpr size_t kMostBytes = 100;
using Spare = base::SpareBytes<struct ThisTest, 2, kMostBytes>;

class SpareBytes : public testing::Test {
 protected:
  void SetUp() override {
    while (Spare::take().capacity() > 0) continue;
  }
};

TEST_F(SpareBytes, AreGivenAgain) {
  std::vector<std::byte> bytes(kMostBytes);
  const std::byte* at = bytes.data();
  Spare::keep(std::move(bytes));
  EXPECT_EQ(at, Spare::take().data());
  EXPECT_EQ(0, Spare::take().capacity());
}

TEST_F(SpareBytes, AreFewAndSmall) {
  Spare::keep(std::vector<std::byte>(kMostBytes + 1));
  EXPECT_EQ(0, Spare::take().capacity());
  for (int i = 0; i < 3; ++i) Spare::keep(std::vector<std::byte>(1));
  for (size_t expected : {1, 1, 0}) EXPECT_EQ(expected, Spare::take().capacity());
}

TEST_F(SpareBytes, AreTheThreadsOwn) {
  Spare::keep(std::vector<std::byte>(1));
  std::thread([] { EXPECT_EQ(0, Spare::take().capacity()); }).join();
  EXPECT_EQ(1, Spare::take().capacity());
}

// A reference that a thread keeps, say, whose destructor sends a message when the spare memory has gone already.
struct EndsLast {
  ~EndsLast() {
    EXPECT_EQ(0, Spare::take().capacity());
    Spare::keep(std::vector<std::byte>(1));
    EXPECT_EQ(0, Spare::take().capacity());
  }
  bool made = true;
};

TEST_F(SpareBytes, AreGoneWhenTheThreadsObjectsEnd) {
  std::thread([] {
    thread_local EndsLast before;
    EXPECT_TRUE(before.made);
    Spare::keep(std::vector<std::byte>(1));
  }).join();
}

}  // namespace
}  // namespace treadle::test::spare_bytes_test

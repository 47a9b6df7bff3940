#include "treadle/core/memory/size_class.h"

#include "gtest/gtest.h"

namespace treadle::memory::size_class_test {
namespace {

constexpr size_t kPage = 4096;

TEST(SizeClass, holdsEverySizeWithAtMostAFifthBeyondIt) {
  for (size_t size = 1; size < (1U << 20); size = size < 70'000 ? size + 1 : size + 997) {
    size_t block = classBytes(sizeClass(size));
    ASSERT_GE(block, size);
    if (size > kSmallestBlock) {
      ASSERT_LT(block - size, block / 5 + 1) << size;
    }
    ASSERT_EQ(0U, block % kPage) << size;
  }
}

TEST(SizeClass, isTheSmallestThatHoldsASize) {
  for (uint32_t one = 1; one < 120; ++one) {
    ASSERT_LT(classBytes(one - 1), classBytes(one));
    EXPECT_EQ(one, sizeClass(classBytes(one)));
    EXPECT_EQ(one, sizeClass(classBytes(one - 1) + 1));
  }
}

}  // namespace
}  // namespace treadle::memory::size_class_test

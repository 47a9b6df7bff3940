#include "treadle/core/base/unique_function.h"

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <memory>

namespace treadle::unique_function_test {
namespace {

// Counts those that live, and is as large as wanted.
template <size_t kBytes>
class Counted {
 public:
  explicit Counted(int& living) : living_(&living) { ++*living_; }
  Counted(Counted&& other) noexcept : living_(other.living_), calls_(other.calls_) { ++*living_; }
  Counted(const Counted&) = delete;
  ~Counted() { --*living_; }
  int operator()(int more) { return calls_ += more; }

 private:
  int* living_;
  int calls_ = 0;
  std::array<std::byte, kBytes> ballast_ = {};
};

template <class Size>
class UniqueFunctions : public testing::Test {};

// Of those that lie within the function and of those that do not.
using Sizes = testing::Types<std::integral_constant<size_t, 1>, std::integral_constant<size_t, 500>>;
TYPED_TEST_SUITE(UniqueFunctions, Sizes);

TYPED_TEST(UniqueFunctions, keepTheirCallableThroughMovesAndDestroyItOnce) {
  int living = 0;
  {
    UniqueFunction<int(int)> function = Counted<TypeParam::value>(living);
    EXPECT_EQ(1, living);
    EXPECT_EQ(1, function(1));
    UniqueFunction<int(int)> moved = std::move(function);
    EXPECT_FALSE(function);  // NOLINT: that is what is asked
    EXPECT_EQ(3, moved(2));
    function = std::move(moved);
    EXPECT_EQ(6, function(3));
    EXPECT_EQ(1, living);
  }
  EXPECT_EQ(0, living);
}

TYPED_TEST(UniqueFunctions, destroyWhatTheyHeldWhenTheyAreGivenAnother) {
  int first = 0, second = 0;
  UniqueFunction<int(int)> function = Counted<TypeParam::value>(first);
  function = Counted<TypeParam::value>(second);
  EXPECT_EQ(0, first);
  EXPECT_EQ(1, second);
  function = {};
  EXPECT_EQ(0, second);
  EXPECT_FALSE(function);
}

TEST(UniqueFunction, holdsWhatCannotBeCopied) {
  UniqueFunction<int()> function = [value = std::make_unique<int>(7)] { return *value; };
  EXPECT_EQ(7, function());
}

TEST(UniqueFunction, givesItsArgumentsOnAsTheyAre) {
  UniqueFunction<std::unique_ptr<int>(std::unique_ptr<int>, int&)> function = [](std::unique_ptr<int> value,
                                                                                 int& seen) {
    seen = *value;
    return value;
  };
  int seen = 0;
  EXPECT_EQ(5, *function(std::make_unique<int>(5), seen));
  EXPECT_EQ(5, seen);
}

TEST(UniqueFunction, ofVoidDropsTheResult) {
  int calls = 0;
  UniqueFunction<void()> function = [&calls] { return ++calls; };
  function();
  EXPECT_EQ(1, calls);
}

// What is held may hold the last of what owns the function: it is empty, or has its new callable, by the time that the
// old one goes.
TEST(UniqueFunction, mayBeAssignedToWhileWhatItHeldGoes) {
  struct Owner {
    UniqueFunction<int()> function;
  } owner;
  struct AtEnd {
    Owner* owner;
    bool* sawNew;
    AtEnd(Owner* owner, bool* sawNew) : owner(owner), sawNew(sawNew) {}
    AtEnd(AtEnd&& other) noexcept : owner(std::exchange(other.owner, nullptr)), sawNew(other.sawNew) {}
    ~AtEnd() {
      if (owner != nullptr) *sawNew = owner->function && owner->function() == 2;
    }
    int operator()() const { return 1; }
  };
  bool sawNew = false;
  owner.function = AtEnd(&owner, &sawNew);
  EXPECT_EQ(1, owner.function());
  owner.function = [] { return 2; };
  EXPECT_TRUE(sawNew);
}

}  // namespace
}  // namespace treadle::unique_function_test

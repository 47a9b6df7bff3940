#include "treadle/core/group/nearest_name.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/seeds.h"

namespace treadle::group::nearest_name_test {
namespace {

// By the definition, over all ways.
size_t distanceByDefinition(std::string_view one, std::string_view other) {
  if (one.empty() || other.empty()) return one.size() + other.size();
  const auto rest = [](std::string_view text) { return text.substr(1); };
  const size_t kept = distanceByDefinition(rest(one), rest(other)) + (one[0] == other[0] ? 0 : 1);
  return std::min({kept, distanceByDefinition(rest(one), other) + 1, distanceByDefinition(one, rest(other)) + 1});
}

TEST(EditDistanceTest, IsTheLeastNumberOfChanges) {
  EXPECT_EQ(editDistance("", ""), 0U);
  EXPECT_EQ(editDistance("", "abc"), 3U);
  EXPECT_EQ(editDistance("kitten", "sitting"), 3U);
  test::forSeeds(100, [](test::Random& random) {
    const auto text = [&] {
      std::string some;
      for (uint64_t size = test::pick(random, 7); size > 0; --size)
        some += static_cast<char>('a' + test::pick(random, 3));
      return some;
    };
    const std::string one = text(), other = text();
    EXPECT_EQ(editDistance(one, other), distanceByDefinition(one, other)) << one << " " << other;
  });
}

TEST(NearestNameTest, IsTheLikeliestSpelling) {
  const std::vector<std::string_view> names = {"layer1.bias", "layer2.weight", "layer1.wieght"};
  EXPECT_EQ(nearestName("layer1.weight", names), "layer2.weight") << "one change; the other takes two";
  EXPECT_EQ(nearestName("layer1.wieght", names), "layer1.wieght");
}

TEST(NearestNameTest, MayBeSimilarByItsSizeOrNot) {
  EXPECT_TRUE(mayBeSimilar("", ""));
  EXPECT_TRUE(mayBeSimilar("ab", "abcd"));
  EXPECT_EQ(nearestName("ab", std::vector<std::string_view>{"abcd"}), "abcd");
  EXPECT_FALSE(mayBeSimilar("ab", "abcde"));
  EXPECT_FALSE(mayBeSimilar("abcde", "ab"));
  EXPECT_EQ(nearestName("ab", std::vector<std::string_view>{"abcde"}), std::nullopt);
}

TEST(NearestNameTest, IsNoneWhereNothingIsLikeIt) {
  const std::vector<std::string_view> names = {"optimizer", "x"};
  EXPECT_EQ(nearestName("layer1.weight", names), std::nullopt);
  EXPECT_EQ(nearestName("layer1.weight", {}), std::nullopt);
}

}  // namespace
}  // namespace treadle::group::nearest_name_test

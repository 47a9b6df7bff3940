// Each form against what it says: which numbers travel, to the bit, and what is lost.

#include "treadle/core/summation/packing.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/support/seeds.h"
#include "treadle/core/group/half.h"

namespace treadle::summation::packing_test {
namespace {

using test::pick;
using test::Random;

using Values = std::vector<float>;
using Chunk = std::array<std::byte, kChunkBytes>;

const std::vector<Compression> kForms = {Compression::float16(),  Compression::bfloat16(),       Compression::oneBit(),
                                         Compression::topK(0.01), Compression::topK(1.0 / 2048), Compression::topK(1)};

Values drawn(Random& random, size_t count) {
  std::normal_distribution<float> normal(0, 1);
  Values values(count);
  for (float& value : values) value = pick(random, 8) == 0 ? 0 : normal(random);
  return values;
}

Values unpacked(const Packing& packing, const Chunk& chunk, size_t count) {
  Values values(count);
  addUnpacked(packing, chunk, values);
  return values;
}

float rounded(float value) { return group::toFloat(group::toBFloat16(value)); }

TEST(Packing, TakesThePartOfTheBytesThatItsFormSays) {
  constexpr uint64_t kElements = 16 * 480 * 1000;
  const auto bytesOf = [](const Compression& compression) { return Packing::of(compression, kElements).bytes(); };
  EXPECT_EQ(2 * kElements, bytesOf(Compression::float16()));
  EXPECT_EQ(2 * kElements, bytesOf(Compression::bfloat16()));
  EXPECT_EQ(4 * kElements / 30, bytesOf(Compression::oneBit()));
  EXPECT_EQ(4 * kElements / 100, bytesOf(Compression::topK(0.01)));
  EXPECT_EQ(4 * kElements, bytesOf(Compression::topK(1)));
  EXPECT_EQ(0u, Packing::of(Compression::oneBit(), 0).bytes());
  EXPECT_EQ(kChunkBytes, Packing::of(Compression::topK(1.0 / 2048), 1).bytes());
  EXPECT_FALSE(Packing::of({}, 100).isPacked());
}

TEST(Packing, LeavesWhatIsLost) {
  test::forSeeds(100, [](Random& random) {
    for (const Compression& compression : kForms) {
      const Packing packing = Packing::of(compression, 1 + pick(random, 40'000));
      ASSERT_TRUE(packing.check().ok());
      const Values given = drawn(random, packing.elementsOf(packing.chunks() - 1));
      Values lost = given;
      Chunk chunk;
      pack(packing, lost, Values(lost.size()), chunk);
      const Values sent = unpacked(packing, chunk, given.size());
      for (size_t i = 0; i < given.size(); ++i)
        ASSERT_NEAR(given[i], sent[i] + lost[i], 1e-6) << i << " of " << given.size();
    }
  });
}

TEST(Packing, SendsTheMeansOfBothSides) {
  test::forSeeds(100, [](Random& random) {
    const Packing packing = Packing::of(Compression::oneBit(), 1 + pick(random, 480));
    const Values given = drawn(random, packing.elements);
    std::array<double, 2> sums{}, counts{};
    for (const float value : given) {
      sums[value < 0 ? 0 : 1] += value;
      ++counts[value < 0 ? 0 : 1];
    }
    Values lost = given;
    Chunk chunk;
    pack(packing, lost, Values(lost.size()), chunk);
    const Values sent = unpacked(packing, chunk, given.size());
    for (size_t i = 0; i < given.size(); ++i) {
      const size_t side = given[i] < 0 ? 0 : 1;
      ASSERT_EQ(rounded(static_cast<float>(sums[side] / counts[side])), sent[i]);
    }
  });
}

TEST(Packing, SendsTheLargestOfEachChunk) {
  test::forSeeds(100, [](Random& random) {
    const Packing packing = Packing::of(Compression::topK(0.01), 1 + pick(random, 1600));
    Values given = drawn(random, packing.elements);
    for (float& value : given)
      if (pick(random, 4) == 0) value = pick(random, 2) == 0 ? 1.0F : -1.0F;  // some are equally large
    std::vector<size_t> places(given.size());
    std::iota(places.begin(), places.end(), size_t{0});
    std::ranges::stable_sort(places, [&](size_t a, size_t b) { return std::abs(given[a]) > std::abs(given[b]); });
    Values expected(given.size());
    for (size_t i = 0; i < std::min<size_t>(16, places.size()); ++i) expected[places[i]] = rounded(given[places[i]]);
    Values lost = given;
    Chunk chunk;
    pack(packing, lost, Values(lost.size()), chunk);
    ASSERT_EQ(expected, unpacked(packing, chunk, given.size()));
  });
}

// All workers are to notice them, as without compression; and no later sum.
TEST(Packing, MakesNumbersThatAreNotFiniteAndKeepsNoneOfThem) {
  constexpr float kInfinite = std::numeric_limits<float>::infinity(), kMost = std::numeric_limits<float>::max();
  Random random(test::seedOfRun());
  for (const Compression& compression : kForms) {
    for (const float wrong : {kInfinite, -kInfinite, std::nanf(""), kMost}) {
      const Packing packing = Packing::of(compression, 20);
      const Values given = drawn(random, packing.elementsOf(0)), before = drawn(random, given.size());
      Values values = given;
      values[3] = wrong;
      if (wrong == kMost && compression.form == Compression::Form::kOneBit) continue;  // its mean is finite
      Chunk chunk;
      pack(packing, values, before, chunk);
      const Values sent = unpacked(packing, chunk, values.size());
      EXPECT_FALSE(std::isfinite(sent[3])) << wrong;
      for (size_t i = 0; i < values.size(); ++i) {
        if (std::isfinite(sent[i])) {
          EXPECT_NEAR(given[i] + before[i], sent[i] + values[i], 1e-6) << i;
        } else {
          EXPECT_EQ(before[i], values[i]) << i;
        }
      }
    }
  }
}

TEST(Packing, AddsAllAddendsAndWhatWasKept) {
  test::forSeeds(100, [](Random& random) {
    for (const Compression& compression : {Compression::oneBit(), Compression::topK(0.01)}) {
      const Packing packing = Packing::of(compression, 1 + pick(random, 3000));
      const uint64_t last = packing.chunks() - 1;
      Values kept = drawn(random, packing.elementsOf(last));
      std::vector<double> all(kept.begin(), kept.end());
      std::vector<Chunk> chunks(1 + pick(random, 4));
      std::vector<const std::byte*> addends;
      for (Chunk& chunk : chunks) {
        Values values = drawn(random, kept.size());
        pack(packing, values, Values(values.size()), chunk);
        const Values sent = unpacked(packing, chunk, kept.size());
        for (size_t i = 0; i < all.size(); ++i) all[i] += sent[i];
        addends.push_back(chunk.data());
      }
      addPacked(packing, addends, kept, chunks.back().data());
      const Values sum = unpacked(packing, chunks.back(), kept.size());
      for (size_t i = 0; i < all.size(); ++i) ASSERT_NEAR(all[i], double{sum[i]} + kept[i], 1e-5);
    }
  });
}

TEST(Packing, IsRefusedWhereItIsNone) {
  for (const Packing& wrong :
       {Packing{Compression::Form::kOneBit, 481, 10}, Packing{Compression::Form::kOneBit, 0, 10},
        Packing{Compression::Form::kTopK, 15, 10}, Packing{Compression::Form::kTopK, 32'769, 10},
        Packing{Compression::Form::kFloat16, 33, 10}, Packing{Compression::Form::kNone, 1, 0},
        Packing{Compression::Form::kNone, 0, 1}, Packing{static_cast<Compression::Form>(5), 480, 10}})
    EXPECT_EQ(Code::kInvalidArgument, wrong.check().code());
  for (const double fraction : {0.0, 1.0 / 2049, 1.001, -0.5, std::numeric_limits<double>::quiet_NaN()})
    EXPECT_EQ(Code::kInvalidArgument, Compression::topK(fraction).validate().code()) << fraction;
  EXPECT_EQ(Code::kInvalidArgument, (Compression{Compression::Form::kOneBit, 0.5}).validate().code());
  for (const Compression& right : kForms) EXPECT_TRUE(right.validate().ok());
}

}  // namespace
}  // namespace treadle::summation::packing_test

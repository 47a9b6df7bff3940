#include "treadle/core/summation/declaration.h"

#include <gtest/gtest.h>

#include "treadle/core/base/error.h"

namespace treadle::summation::declaration_test {
namespace {

using group::DataType;

const std::vector<Declaration::Tensor> kTensors = {
    {DataType::kFloat32, 100'000'000, "weight"}, {DataType::kFloat64, 0, "none"}, {DataType::kFloat16, 6}};

TEST(Declaration, IsAsItShouldBeWhereItIsPlacedByShares) {
  for (const auto& [workers, servers] : {std::pair<size_t, size_t>{1, 0}, {3, 2}, {8, 8}}) {
    const Declaration declaration =
        valueOrThrow(Declaration::of(kTensors, bestShares(Bandwidths::even(workers, servers, 1))));
    EXPECT_TRUE(declaration.check(workers + servers).ok()) << declaration.check(workers + servers).message();
    EXPECT_FALSE(declaration.check(workers - 1).ok());  // fewer machines than have parts
  }
}

// However many parts tensors are cut into, at sizes where one more begins.
TEST(Declaration, MayHaveAllPartsThatSharesAskFor) {
  std::vector<Declaration::Tensor> tensors;
  for (const uint64_t most : {kLeastPartBytes, 2 * kLeastPartBytes, kMostPartBytes, 3 * kMostPartBytes})
    for (const int64_t more : {-4, 0, 4})
      tensors.push_back(
          {DataType::kFloat32, most + static_cast<uint64_t>(more), "weight" + std::to_string(tensors.size())});
  for (const auto& [workers, servers] : {std::pair<size_t, size_t>{1, 0}, {2, 1}, {8, 8}, {300, 200}})
    for (const bool isAsynchronous : {false, true}) {
      const Shares shares = serviceShares(Bandwidths::even(workers, servers, 1), isAsynchronous);
      const Status status = valueOrThrow(Declaration::of(tensors, shares)).check(workers + servers);
      EXPECT_TRUE(status.ok()) << status.message() << ": " << workers << " workers and " << servers << " servers";
    }
}

// As a hostile machine might, to fill memory.
TEST(Declaration, IsRefusedWithMorePartsThanSharesAskFor) {
  Declaration declaration{.tensors = {{DataType::kFloat32, 2 * kLeastPartBytes, "weight"}}, .parts = {}, .workers = 2};
  const auto cutInto = [&](uint64_t count) {
    declaration.parts.clear();
    const uint64_t bytes = 2 * kLeastPartBytes / count;
    for (uint64_t i = 0; i < count; ++i) declaration.parts.push_back({0, i * bytes, (i + 1) * bytes, i % 2});
  };
  cutInto(2);
  EXPECT_TRUE(declaration.check(2).ok());
  cutInto(4);
  EXPECT_EQ(Code::kInvalidArgument, declaration.check(2).code());
}

TEST(Declaration, IsRefusedWhereTensorsHaveNoSum) {
  const Shares shares = bestShares(Bandwidths::even(2, 1, 1));
  for (const Declaration::Tensor& wrong :
       {Declaration::Tensor{DataType::kBool, 1}, Declaration::Tensor{DataType::kFloat32, 6},
        Declaration::Tensor{DataType::kUint8, Declaration::kMostBytes + 1}})
    EXPECT_EQ(Code::kInvalidArgument, Declaration::of({wrong}, shares).status().code());
  // Together.
  const Declaration::Tensor half = {DataType::kUint8, Declaration::kMostBytes / 2 + 1};
  EXPECT_EQ(Code::kInvalidArgument, Declaration::of({half, half}, shares).status().code());
}

TEST(Declaration, MayHaveCompressedTensors) {
  const Shares shares = bestShares(Bandwidths::even(3, 2, 1));
  const auto tensor = [](uint64_t elements) {
    const Packing packing = Packing::of(Compression::oneBit(), elements);
    return Declaration::Tensor{DataType::kFloat32, packing.bytes(), "weight", packing};
  };
  Declaration declaration = valueOrThrow(Declaration::of({tensor(50'000'000), tensor(0), tensor(1)}, shares));
  EXPECT_TRUE(declaration.check(5).ok());
  for (const Part& part : declaration.parts) EXPECT_EQ(0u, part.begin % kChunkBytes);
  EXPECT_EQ(200'000'000u, declaration.tensors.front().dataBytes());
  declaration.mode.isAsynchronous = true;
  EXPECT_FALSE(declaration.check(5).ok());

  const auto isRefused = [&](auto change) {
    Declaration::Tensor wrong = tensor(1000);
    change(wrong);
    return !Declaration::of({wrong}, shares).ok();
  };
  EXPECT_FALSE(isRefused([](auto&) {}));
  EXPECT_TRUE(isRefused([](auto& one) { one.type = DataType::kFloat16; }));
  EXPECT_TRUE(isRefused([](auto& one) { one.bytes += kChunkBytes; }));
  EXPECT_TRUE(isRefused([](auto& one) { one.packing.chunkElements = 1000; }));
  EXPECT_TRUE(isRefused([](auto& one) { one.packing.elements = UINT64_MAX; }));
  // Its data would not fit, though what travels does.
  const Packing large = Packing::of(Compression::topK(1.0 / 2048), Declaration::kMostBytes / 2);
  EXPECT_FALSE(Declaration::of({{DataType::kFloat32, large.bytes(), "large", large}}, shares).ok());
}

TEST(Declaration, IsRefusedWherePartsAreNotAsTheyShouldBe) {
  const auto refused = [](const std::vector<Part>& parts) {
    const Declaration declaration = {{{DataType::kFloat32, 16}, {DataType::kFloat32, 8'000'000}}, parts, 1};
    return !declaration.check(2).ok();
  };
  const Part second = {1, 0, 4'000'000, 1}, third = {1, 4'000'000, 8'000'000, 0};
  EXPECT_FALSE(refused({{0, 0, 16, 0}, second, third}));
  EXPECT_TRUE(refused({{0, 0, 16, 0}, second}));                                // not all
  EXPECT_TRUE(refused({second, third}));                                        // not all
  EXPECT_TRUE(refused({second, third, {0, 0, 16, 0}}));                         // another order
  EXPECT_TRUE(refused({{0, 0, 16, 0}, second, third, third}));                  // twice
  EXPECT_TRUE(refused({{0, 0, 16, 0}, {1, 0, 8'000'000, 0}}));                  // too large
  EXPECT_TRUE(refused({{0, 0, 16, 2}, second, third}));                         // no such machine
  EXPECT_TRUE(refused({{0, 0, 6, 0}, {0, 6, 16, 0}, second, third}));           // through an element
  EXPECT_TRUE(refused({{0, 0, 0, 0}, {0, 0, 16, 0}, second, third}));           // empty
  EXPECT_TRUE(refused({{0, 0, 16, 0}, second, {1, 4'000'000, 8'000'004, 0}}));  // beyond the tensor
  std::vector<Part> many;
  for (uint64_t begin = 0; begin < 16; begin += 4) many.push_back({0, begin, begin + 4, 0});
  for (uint64_t begin = 0; begin < 8'000'000; begin += 4000) many.push_back({1, begin, begin + 4000, 0});
  EXPECT_TRUE(refused(many));  // far more than placing makes
}

}  // namespace
}  // namespace treadle::summation::declaration_test

#include "treadle/core/group/batch_cutter.h"

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tests/support/seeds.h"

namespace treadle::group::batch_cutter_test {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;

Signature bytes(uint64_t sizeBytes, DataType type = DataType::kUint8, ReduceOp op = ReduceOp::kSum) {
  return {type, op, {sizeBytes / sizeOf(type)}};
}

std::vector<uint64_t> tensorsOf(const BatchCutter::Batch& batch) {
  std::vector<uint64_t> tensors;
  for (const BatchCutter::Piece& piece : batch) tensors.push_back(piece.tensor);
  return tensors;
}

using Tensors = std::vector<uint64_t>;

TEST(BatchCutterTest, PutsSmallTensorsOfOneTypeAndReductionTogether) {
  BatchCutter cutter;
  cutter.add(0, bytes(100, DataType::kFloat32));
  cutter.add(1, bytes(100, DataType::kFloat64));
  cutter.add(2, bytes(100, DataType::kFloat32, ReduceOp::kMax));
  cutter.add(3, bytes(kPieceBytes, DataType::kFloat32));
  cutter.add(4, bytes(0, DataType::kFloat64));
  EXPECT_EQ(tensorsOf(cutter.next()), (Tensors{0, 3}));
  EXPECT_EQ(tensorsOf(cutter.next()), (Tensors{1, 4}));
  EXPECT_EQ(tensorsOf(cutter.next()), (Tensors{2}));
  EXPECT_TRUE(cutter.next().empty());
  EXPECT_TRUE(cutter.empty());
}

TEST(BatchCutterTest, FillsABatchToItsLimit) {
  BatchCutter cutter;
  for (uint64_t i = 0; i < 33; ++i) cutter.add(i, bytes(2 * kMiB - (i == 0 ? 1 : 0)));
  cutter.add(33, bytes(1));
  const Tensors first = tensorsOf(cutter.next());
  EXPECT_EQ(first.size(), 33U) << "32 times 2 MiB but a byte, and a byte";
  EXPECT_EQ(first.back(), 33U);
  EXPECT_EQ(tensorsOf(cutter.next()), (Tensors{32}));
}

TEST(BatchCutterTest, PutsNoMoreTensorsTogetherThanAMessageHolds) {
  BatchCutter cutter;
  for (uint64_t i = 0; i < kMostParts + 1; ++i) cutter.add(i, bytes(1));
  EXPECT_EQ(cutter.next().size(), kMostParts);
  EXPECT_EQ(cutter.next().size(), 1U);
}

// The small one waits for one piece of the large one.
TEST(BatchCutterTest, CutsLargeTensorsWhichTakeTurnsWithOthers) {
  BatchCutter cutter;
  cutter.add(0, bytes(10 * kMiB, DataType::kFloat64));
  cutter.add(1, bytes(9 * kMiB, DataType::kFloat64));
  cutter.add(2, bytes(8, DataType::kFloat64));
  Tensors order;
  std::map<uint64_t, uint64_t> elements;
  for (BatchCutter::Batch batch = cutter.next(); !batch.empty(); batch = cutter.next()) {
    ASSERT_EQ(batch.size(), 1U);
    const BatchCutter::Piece& piece = batch[0];
    EXPECT_EQ(piece.elements.begin, elements[piece.tensor]);
    elements[piece.tensor] = piece.elements.end;
    order.push_back(piece.tensor);
  }
  EXPECT_EQ(order, (Tensors{0, 1, 2, 0, 1, 0, 1}));
  EXPECT_EQ(elements, (std::map<uint64_t, uint64_t>{{0, 10 * kMiB / 8}, {1, 9 * kMiB / 8}, {2, 1}}));
}

TEST(BatchCutterTest, ForgetsWhatIsRemoved) {
  BatchCutter cutter;
  cutter.add(0, bytes(10 * kMiB));
  cutter.add(1, bytes(8));
  EXPECT_EQ(tensorsOf(cutter.next()), (Tensors{0}));
  cutter.remove(0);
  cutter.remove(7);
  EXPECT_EQ(tensorsOf(cutter.next()), (Tensors{1}));
  EXPECT_TRUE(cutter.empty());
}

// Any tensors: each element is in one piece, in order; the last piece of each tensor says so; no batch is too large or
// mixes types.
TEST(BatchCutterTest, CutsAllElementsOnce) {
  test::forSeeds(200, [](test::Random& random) {
    BatchCutter cutter;
    std::map<uint64_t, Signature> tensors;
    std::map<uint64_t, uint64_t> cut;
    std::set<uint64_t> done;
    const uint64_t count = 1 + test::pick(random, 60);
    while (done.size() < count) {
      if (tensors.size() < count && test::pick(random, 3) > 0) {
        const uint64_t id = tensors.size();
        const uint64_t sizes[] = {0, 8, 1000 * 8, kMiB, kPieceBytes, kPieceBytes + 8, 3 * kPieceBytes + 800};
        tensors[id] = bytes(sizes[test::pick(random, std::size(sizes))],
                            test::pick(random, 2) > 0 ? DataType::kFloat32 : DataType::kInt64);
        cutter.add(id, tensors[id]);
        continue;
      }
      const BatchCutter::Batch batch = cutter.next();
      ASSERT_EQ(batch.empty(), tensors.size() == done.size());
      uint64_t sizeBytes = 0;
      for (const BatchCutter::Piece& piece : batch) {
        const Signature& signature = tensors.at(piece.tensor);
        ASSERT_EQ(signature.dataType, tensors.at(batch[0].tensor).dataType);
        ASSERT_EQ(piece.elements.begin, cut[piece.tensor]);
        cut[piece.tensor] = piece.elements.end;
        ASSERT_EQ(piece.last, piece.elements.end == signature.elements());
        ASSERT_TRUE(!piece.last || done.insert(piece.tensor).second);
        ASSERT_TRUE(batch.size() == 1 || piece.last) << "only whole ones go together";
        sizeBytes += piece.elements.count() * sizeOf(signature.dataType);
        ASSERT_LE(piece.elements.count() * sizeOf(signature.dataType), kPieceBytes);
      }
      ASSERT_LE(sizeBytes, kBatchBytes);
    }
    EXPECT_TRUE(cutter.empty());
  });
}

}  // namespace
}  // namespace treadle::group::batch_cutter_test

#include "treadle/core/group/fusion_messages.h"

#include "tests/core/group/group_job.h"
#include "treadle/core/wire/writer.h"

namespace treadle::group::fusion_messages_test {
namespace {

using test::contains;

Offers someOffers() {
  return {{Offer{"layer1.weight", {DataType::kFloat32, ReduceOp::kSum, {2, 3}}},
           Failed{7, cancelled("worker 'w1' (rank 1) cancelled pushPull of 'bias'")},
           Offer{"scalar", {DataType::kInt64, ReduceOp::kMax}}}};
}

Orders someOrders() {
  return {true, {{4, {0, 100}}, {9, {1000, 1000}}}, {{7, peerLost("w2", "worker 'w2' (rank 2) was lost")}}};
}

void expectSame(const std::vector<Failed>& got, const std::vector<Failed>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].number, wanted[i].number);
    EXPECT_EQ(got[i].why.toString(), wanted[i].why.toString());
    EXPECT_EQ(got[i].why.worker(), wanted[i].why.worker());
  }
}

TEST(FusionMessagesTest, OffersSurviveTheWire) {
  const Offers sent = someOffers();
  const Result<Offers> got = parseOffers(encode(sent));
  ASSERT_TRUE(got.ok()) << got.status().toString();
  ASSERT_EQ(got->entries.size(), sent.entries.size());
  for (size_t i : {0U, 2U}) {
    const auto &one = std::get<Offer>(got->entries[i]), &other = std::get<Offer>(sent.entries[i]);
    EXPECT_EQ(one.name, other.name);
    EXPECT_EQ(one.signature, other.signature);
  }
  expectSame({std::get<Failed>(got->entries[1])}, {std::get<Failed>(sent.entries[1])});
}

TEST(FusionMessagesTest, OrdersSurviveTheWire) {
  const Orders sent = someOrders();
  const Result<Orders> got = parseOrders(encode(sent));
  ASSERT_TRUE(got.ok()) << got.status().toString();
  EXPECT_EQ(got->answered, sent.answered);
  ASSERT_EQ(got->parts.size(), sent.parts.size());
  for (size_t i = 0; i < sent.parts.size(); ++i) {
    EXPECT_EQ(got->parts[i].number, sent.parts[i].number);
    EXPECT_EQ(got->parts[i].elements, sent.parts[i].elements);
  }
  expectSame(got->failures, sent.failures);
}

TEST(FusionMessagesTest, EveryOtherLengthIsRefused) {
  std::vector<std::byte> offers = encode(someOffers()), orders = encode(someOrders());
  for (size_t size = 0; size < offers.size(); ++size)
    EXPECT_EQ(parseOffers(Bytes(offers).first(size)).status().code(), Code::kDataLoss) << size;
  for (size_t size = 0; size < orders.size(); ++size)
    EXPECT_EQ(parseOrders(Bytes(orders).first(size)).status().code(), Code::kDataLoss) << size;
  offers.push_back(std::byte{0});
  orders.push_back(std::byte{0});
  EXPECT_FALSE(parseOffers(offers).ok());
  EXPECT_FALSE(parseOrders(orders).ok());
}

TEST(FusionMessagesTest, NamesAreShortAndMayBeWrittenToALog) {
  const auto sent = [](const std::string& name) { return parseOffers(encode(Offers{{Offer{name, {}}}})).ok(); };
  EXPECT_TRUE(sent(std::string(kTensorNameBytes, 'x')));
  EXPECT_TRUE(sent("Gewicht für Schicht 1"));
  EXPECT_FALSE(sent(std::string(kTensorNameBytes + 1, 'x')));
  EXPECT_FALSE(sent(""));
  for (const char* control : {"two\nlines", "\x1b[31m", "tab\t", "\x7f"}) EXPECT_FALSE(sent(control));
  EXPECT_TRUE(contains(checkTensorName(std::string(300, 'x')).message(), "at most 255 bytes; this has 300"));
}

TEST(FusionMessagesTest, MoreThanAMessageMayHoldIsRefused) {
  const Failed failed{0, cancelled("x")};
  for (size_t more : {0U, 1U}) {
    Offers offers;
    offers.entries.assign(kMostEntries + more, Offer{"x", {}});
    EXPECT_EQ(parseOffers(encode(offers)).ok(), more == 0);
    offers.entries.assign(kMostEntries + more, failed);
    EXPECT_EQ(parseOffers(encode(offers)).ok(), more == 0);
    const Orders parts{false, std::vector<Part>(kMostParts + more), {}};
    EXPECT_EQ(parseOrders(encode(parts)).ok(), more == 0);
    const Orders failures{false, {}, std::vector<Failed>(kMostFailures + more, failed)};
    EXPECT_EQ(parseOrders(encode(failures)).ok(), more == 0);
  }
}

TEST(FusionMessagesTest, MessagesThatHoldNothingAreRefused) {
  EXPECT_EQ(parseOffers(encode(Offers{})).status().code(), Code::kDataLoss);
  EXPECT_EQ(parseOrders(encode(Orders{})).status().code(), Code::kDataLoss);
  EXPECT_TRUE(parseOrders(encode(Orders{true, {}, {}})).ok());
}

// A count is compared with the bytes that are there before anything is allocated for it.
TEST(FusionMessagesTest, CountsOfWhatIsNotThereAreRefused) {
  for (uint32_t count : {2U, 1000U, UINT32_MAX}) {
    wire::Writer offers, orders;
    offers.number(count);
    orders.number(uint8_t{0});
    orders.number(count);
    EXPECT_FALSE(parseOffers(offers.bytes()).ok());
    EXPECT_FALSE(parseOrders(orders.bytes()).ok());
  }
}

TEST(FusionMessagesTest, TensorsThatNoMemoryHoldsAreRefused) {
  const auto sent = [](std::vector<uint64_t> shape) {
    return parseOffers(encode(Offers{{Offer{"x", {DataType::kFloat32, ReduceOp::kSum, std::move(shape)}}}})).ok();
  };
  const uint64_t huge = uint64_t{1} << 32;
  EXPECT_TRUE(sent({huge, 1000}));
  EXPECT_TRUE(sent({0, huge, huge, huge})) << "it has no elements";
  EXPECT_FALSE(sent({huge, huge}));
  EXPECT_FALSE(sent({UINT64_MAX}));
  EXPECT_FALSE(sent({huge, huge, huge, huge, huge})) << "the product wraps around to 0";
  EXPECT_TRUE(sent(std::vector<uint64_t>(kMostDimensions, 1)));
  EXPECT_FALSE(sent(std::vector<uint64_t>(kMostDimensions + 1, 1)));
}

TEST(FusionMessagesTest, ReductionsThatATypeLacksAreRefused) {
  for (auto [type, op] : {std::pair(DataType::kBool, ReduceOp::kSum), std::pair(DataType::kComplex64, ReduceOp::kMax)})
    EXPECT_FALSE(parseOffers(encode(Offers{{Offer{"x", {type, op, {3}}}}})).ok());
}

TEST(FusionMessagesTest, EntriesOfAnotherKindAreRefused) {
  std::vector<std::byte> bytes = encode(someOffers());
  for (int kind : {0, 3, 255}) {
    bytes[sizeof(uint32_t)] = static_cast<std::byte>(kind);
    EXPECT_FALSE(parseOffers(bytes).ok()) << kind;
  }
}

TEST(FusionMessagesTest, PartsEndAfterTheyBegin) {
  EXPECT_FALSE(parseOrders(encode(Orders{false, {{0, {2, 1}}}, {}})).ok());
}

TEST(FusionMessagesTest, LongReasonsAreCut) {
  const Orders sent{false, {}, {{0, cancelled(std::string(10'000, 'x'))}}};
  EXPECT_EQ(parseOrders(encode(sent))->failures[0].why.message(), std::string(kFailureBytes, 'x'));
}

TEST(SignatureTest, ReadsWell) {
  EXPECT_EQ(describe(Signature{DataType::kFloat32, ReduceOp::kSum, {2, 3}}), "float32 [2, 3] (sum)");
  EXPECT_EQ(describe(Signature{DataType::kBool, ReduceOp::kMax}), "bool [] (max)");
}

TEST(SignatureTest, CountsElements) {
  EXPECT_EQ((Signature{DataType::kFloat64, ReduceOp::kSum, {2, 3, 4}}.elements()), 24U);
  EXPECT_EQ((Signature{DataType::kFloat64, ReduceOp::kSum, {}}.elements()), 1U);
  EXPECT_EQ((Signature{DataType::kFloat32, ReduceOp::kSum, {5, 0}}.elements()), 0U);
}

}  // namespace
}  // namespace treadle::group::fusion_messages_test

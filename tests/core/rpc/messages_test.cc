#include "treadle/core/rpc/messages.h"

#include "tests/support/seeds.h"

namespace treadle::rpc::messages_test {
namespace {

constexpr int kWorld = 4;

std::vector<std::byte> encoded(const MessageHeader& header) {
  wire::Writer writer;
  encodeHeader(writer, header);
  return writer.take();
}

Result<MessageHeader> parse(Bytes bytes) {
  wire::Reader reader(bytes);
  Result<MessageHeader> header = parseHeader(reader, kWorld);
  if (header.ok() && reader.left() > 0) return dataLoss("left over");
  return header;
}

GlobalId randomId(test::Random& random) { return {static_cast<int32_t>(test::pick(random, kWorld)), random()}; }
ForkEntry randomEntry(test::Random& random) {
  return {randomId(random), static_cast<int32_t>(test::pick(random, kWorld)), randomId(random)};
}

MessageHeader randomHeader(test::Random& random) {
  MessageHeader header;
  header.type = static_cast<MessageType>(1 + test::pick(random, 5));
  if (header.type == MessageType::kNotice) {
    header.notice = static_cast<RefNotice>(1 + test::pick(random, 5));
    header.fork = randomEntry(random);
    return header;
  }
  header.id = random();
  if (header.type == MessageType::kRequest || header.type == MessageType::kFetch) {
    header.timeLeftUs = random();
    header.priority = static_cast<int8_t>(random());
    if (test::pick(random, 2) == 0) header.target = randomId(random);
    header.function = std::string(test::pick(random, 30), 'f');
    header.signature = random();
    if (test::pick(random, 2) == 0) header.result = randomEntry(random);
    for (uint16_t i = 0; header.type == MessageType::kRequest && i < test::pick(random, 4); ++i)
      header.inputs.push_back({i, randomId(random), static_cast<int32_t>(test::pick(random, kWorld))});
  }
  if (header.type == MessageType::kAnswer && test::pick(random, 2) == 0)
    header.status = Status(static_cast<Code>(1 + test::pick(random, 10)), "why")
                        .withWorker("w")
                        .withFunction("f")
                        .withRemoteType("std::exception")
                        .withTrail(std::vector<std::string>(test::pick(random, 4), "worker"));
  if (header.type != MessageType::kCancel) {
    for (uint64_t left = test::pick(random, 4); left > 0; --left) header.forks.push_back(randomEntry(random));
    header.field.resize(test::pick(random, 20), std::byte{7});
  }
  return header;
}

TEST(RpcMessages, comeBackAsTheyWereMade) {
  test::forSeeds(2000, [](test::Random& random) {
    MessageHeader header = randomHeader(random);
    std::vector<std::byte> bytes = encoded(header);
    Result<MessageHeader> got = parse(bytes);
    ASSERT_TRUE(got.ok()) << got.status().toString();
    EXPECT_EQ(bytes, encoded(*got));  // every field, once more as bytes
    EXPECT_EQ(header.function, got->function);
    EXPECT_EQ(header.status.toString(), got->status.toString());
    EXPECT_EQ(header.forks.size(), got->forks.size());
    EXPECT_EQ(header.inputs.size(), got->inputs.size());
    EXPECT_EQ(header.status.trail(), got->status.trail());
    EXPECT_EQ(header.target, got->target);
    EXPECT_EQ(header.priority, got->priority);
  });
}

TEST(RpcMessages, areStampedWithWhatIsKnownLast) {
  for (MessageType type : {MessageType::kRequest, MessageType::kFetch}) {
    MessageHeader header;
    header.type = type;
    header.function = "f";
    wire::Writer early;
    encodeHeader(early, header);
    stampRequest(early, header.id = 7, header.timeLeftUs = 8);
    EXPECT_EQ(encoded(header), early.take());
  }
}

TEST(RpcMessages, areRefusedWhenCutAnywhere) {
  test::forSeeds(50, [](test::Random& random) {
    std::vector<std::byte> bytes = encoded(randomHeader(random));
    for (size_t cut = 0; cut < bytes.size(); ++cut)
      ASSERT_EQ(Code::kDataLoss, parse(Bytes(bytes).first(cut)).status().code()) << cut;
  });
}

TEST(RpcMessages, areRefusedWithValuesOutOfRange) {
  for (int type : {0, 6, 255}) {
    auto bytes = encoded({});
    bytes[0] = static_cast<std::byte>(type);
    EXPECT_NE(std::string::npos, parse(bytes).status().message().find("unknown type " + std::to_string(type)));
  }
  for (int32_t rank : {-1, kWorld, INT32_MAX}) {
    ForkEntry good{{1, 1}, 1, {1, 2}}, ref = good, owner = good, fork = good;
    ref.ref.rank = rank;
    owner.owner = rank;
    fork.fork.rank = rank;
    for (const ForkEntry& entry : {ref, owner, fork}) {
      MessageHeader notice, forks, result, target;
      notice.type = MessageType::kNotice;
      notice.fork = entry;
      forks.forks = {good, entry};
      result.result = entry;
      target.target = GlobalId{rank, 1};
      for (const MessageHeader& header : {notice, forks, result, target})
        EXPECT_EQ(Code::kDataLoss, parse(encoded(header)).status().code());
    }
  }
  MessageHeader notice;
  notice.type = MessageType::kNotice;
  notice.fork = {{0, 1}, 0, {0, 2}};
  for (int kind : {0, 6, 255}) {
    auto bytes = encoded(notice);
    bytes[1] = static_cast<std::byte>(kind);
    EXPECT_FALSE(parse(bytes).ok());
  }
  MessageHeader code;
  code.type = MessageType::kAnswer;
  code.status = Status(static_cast<Code>(11), "no such code");
  EXPECT_FALSE(parse(encoded(code)).ok());
}

TEST(RpcMessages, surviveAHundredThousandMutations) {
  test::Random random(1);
  std::vector<std::vector<std::byte>> wholes;
  for (int i = 0; i < 20; ++i) wholes.push_back(encoded(randomHeader(random)));
  for (int i = 0; i < 100'000; ++i) {
    std::vector<std::byte> bytes = wholes[test::pick(random, wholes.size())];
    bytes.resize(test::pick(random, bytes.size() + 3));
    for (uint64_t left = test::pick(random, 5); left > 0 && !bytes.empty(); --left)
      bytes[test::pick(random, bytes.size())] = static_cast<std::byte>(test::pick(random, 2) == 0 ? 0 : random());
    Result<MessageHeader> header = parse(bytes);
    if (!header.ok()) continue;
    ASSERT_LE(header->forks.size() * 28, bytes.size());
    for (const ForkEntry& entry : header->forks) ASSERT_LT(entry.owner, kWorld);
  }
}

TEST(RpcMessages, inputsNameEachArgumentOnceAndInOrder) {
  MessageHeader header;
  header.inputs = {{0, {1, 2}, 1}, {3, {1, 2}, 0}};
  EXPECT_TRUE(parse(encoded(header)).ok());
  for (uint16_t second : {0, 3}) {
    header.inputs = {{3, {1, 2}, 1}, {second, {1, 2}, 0}};
    EXPECT_EQ(Code::kDataLoss, parse(encoded(header)).status().code());
  }
  header.inputs = {{0, {1, 2}, kWorld}};
  EXPECT_EQ(Code::kDataLoss, parse(encoded(header)).status().code());
  header.inputs.clear();
  for (uint16_t i = 0; i < kMostInputs; ++i) header.inputs.push_back({i, {1, 2}, 0});
  EXPECT_TRUE(parse(encoded(header)).ok());
  header.inputs.push_back({kMostInputs, {1, 2}, 0});
  EXPECT_EQ(Code::kDataLoss, parse(encoded(header)).status().code()) << "too many";
  header.type = MessageType::kFetch;
  header.inputs = {{0, {1, 2}, 0}};
  EXPECT_EQ(Code::kDataLoss, parse(encoded(header)).status().code()) << "a fetch has no arguments";
}

}  // namespace
}  // namespace treadle::rpc::messages_test

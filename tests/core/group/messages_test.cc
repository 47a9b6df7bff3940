#include "treadle/core/group/messages.h"

#include "tests/core/group/group_job.h"

namespace treadle::group::messages_test {
namespace {

Message example(MessageKind kind) {
  Message message;
  message.group = 0x0123456789ABCDEF;
  message.sequence = 41;
  message.stream = Stream::kReceives;
  message.kind = kind;
  if (kind == MessageKind::kStart) {
    message.description = {OperationKind::kBroadcast, DataType::kInt64, ReduceOp::kMax, 3, 1000, 7, 64, 128,
                           Algorithm::kRing};
    message.description.urgency = 9;
    message.elements = 500;
  } else if (kind == MessageKind::kAbort) {
    message.status = peerLost("ps", "worker 'ps' (rank 1) was lost");
  } else if (kind == MessageKind::kAnswer) {
    message.begun = true;
  } else if (kind == MessageKind::kResult || kind == MessageKind::kShare) {
    message.elements = 77;
  } else if (isOfNames(kind)) {
    message.stream = Stream::kFused;
    message.sequence = 0;
    message.body = {std::byte{1}, std::byte{2}};
  } else if (kind != MessageKind::kAsk) {
    message.position = 99;
  }
  return message;
}

constexpr MessageKind kKinds[] = {MessageKind::kStart, MessageKind::kChunk,  MessageKind::kAck,    MessageKind::kAbort,
                                  MessageKind::kAsk,   MessageKind::kAnswer, MessageKind::kResult, MessageKind::kShare};
constexpr MessageKind kKindsOfNames[] = {MessageKind::kOffers, MessageKind::kOrders};

link::Message received(std::vector<std::byte> payload, size_t buffers = 0) {
  link::Message message{link::Subject::kGroup, std::move(payload), {}};
  for (size_t i = 0; i < buffers; ++i) message.buffers.push_back(allocateBuffer(8));
  return message;
}

TEST(GroupMessagesTest, SurviveTheWire) {
  for (MessageKind kind : kKinds) {
    Message sent = example(kind);
    Result<Message> got = parse(received(encode(sent)));
    ASSERT_TRUE(got.ok()) << got.status().toString();
    EXPECT_EQ(got->group, sent.group);
    EXPECT_EQ(got->stream, sent.stream);
    EXPECT_EQ(got->sequence, sent.sequence);
    EXPECT_EQ(got->kind, kind);
    EXPECT_EQ(got->description, sent.description);
    EXPECT_EQ(got->elements, sent.elements);
    EXPECT_EQ(got->position, sent.position);
    EXPECT_EQ(got->begun, sent.begun);
    EXPECT_EQ(got->status.toString(), sent.status.toString());
    EXPECT_EQ(got->status.worker(), sent.status.worker());
  }
}

TEST(GroupMessagesTest, TheStartOfASparseAllReduceHasItsShape) {
  Message sent = example(MessageKind::kStart);
  sent.description.operation = OperationKind::kSparseAllReduce;
  sent.description.shape = "[5, 200] with 1 sparse dimension";
  Result<Message> got = parse(received(encode(sent)));
  ASSERT_TRUE(got.ok()) << got.status().toString();
  EXPECT_EQ(got->description, sent.description);
  EXPECT_EQ(got->elements, sent.elements);
  EXPECT_EQ(describe(got->description), "sparseAllReduce (max) of 1000 int64 in [5, 200] with 1 sparse dimension");
  sent.description.shape = std::string(2049, ' ');
  EXPECT_FALSE(parse(received(encode(sent))).ok());
}

TEST(GroupMessagesTest, AStartOfNoOperationIsRefused) {
  for (uint8_t operation : {0, 1, 12, 13, 255}) {
    Message sent = example(MessageKind::kStart);
    sent.description.operation = static_cast<OperationKind>(operation);
    EXPECT_EQ(parse(received(encode(sent))).ok(), operation == 1 || operation == 12) << int{operation};
  }
}

TEST(GroupMessagesTest, AStartSaysWhatItsDataIs) {
  Message sent = example(MessageKind::kStart);
  sent.description.shape = "float32 [5, 50]";
  for (const auto& [operation, text] : std::initializer_list<std::pair<OperationKind, std::string>>{
           {OperationKind::kAllReduce, "allReduce (max) of float32 [5, 50]"},
           {OperationKind::kBroadcast, "broadcast from the group's rank 3 of float32 [5, 50]"},
           {OperationKind::kGather, "gather to the group's rank 3 of float32 [5, 50]"},
           {OperationKind::kAllToAll, "allToAll of float32 [5, 50]"},
           {OperationKind::kAllToAllV, "allToAll of float32 [5, 50] in blocks of any sizes"},
           {OperationKind::kSend, "recv of float32 [5, 50]"}}) {
    sent.description.operation = operation;
    Result<Message> got = parse(received(encode(sent)));
    ASSERT_TRUE(got.ok()) << got.status().toString();
    EXPECT_EQ(got->description, sent.description);
    EXPECT_EQ(describe(got->description), text);
  }
}

TEST(GroupMessagesTest, EveryOtherLengthIsRefused) {
  for (MessageKind kind : kKinds) {
    std::vector<std::byte> whole = encode(example(kind));
    for (size_t size = 0; size < whole.size(); ++size)
      EXPECT_EQ(parse(received({whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size)})).status().code(),
                Code::kDataLoss);
    whole.push_back(std::byte{0});
    EXPECT_EQ(parse(received(whole)).status().code(), Code::kDataLoss);
  }
}

TEST(GroupMessagesTest, BuffersComeWithDataOnly) {
  EXPECT_EQ(parse(received(encode(example(MessageKind::kStart)), 1))->data.sizeBytes, 8U);
  EXPECT_EQ(parse(received(encode(example(MessageKind::kChunk)), 1))->data.sizeBytes, 8U);
  for (MessageKind kind : {MessageKind::kResult, MessageKind::kShare})
    EXPECT_EQ(parse(received(encode(example(kind)), 1))->data.sizeBytes, 8U);
  EXPECT_FALSE(parse(received(encode(example(MessageKind::kChunk)), 2)).ok());
  EXPECT_FALSE(parse(received(encode(example(MessageKind::kAck)), 1)).ok());
  EXPECT_FALSE(parse(received(encode(example(MessageKind::kAbort)), 1)).ok());
}

TEST(GroupMessagesTest, OnlyAnAbortIsForTheWholeGroup) {
  for (MessageKind kind : kKinds) {
    Message message = example(kind);
    message.sequence = kWholeGroup;
    EXPECT_FALSE(parse(received(encode(message))).ok()) << "a stream of two has none";
    message.stream = Stream::kAll;
    EXPECT_EQ(parse(received(encode(message))).ok(), kind == MessageKind::kAbort);
  }
}

TEST(GroupMessagesTest, UnknownStreamsAreRefused) {
  Message message = example(MessageKind::kChunk);
  for (int stream = 0; stream < 256; ++stream) {
    message.stream = static_cast<Stream>(stream);
    EXPECT_EQ(parse(received(encode(message))).ok(), stream < 4);
  }
}

TEST(GroupMessagesTest, ThoseAboutNamesAreKeptAsTheyCameAndBelongToOneStream) {
  for (MessageKind kind : kKindsOfNames) {
    const Message sent = example(kind);
    const Result<Message> got = parse(received(encode(sent)));
    ASSERT_TRUE(got.ok()) << got.status().toString();
    EXPECT_EQ(got->body, sent.body);
    EXPECT_FALSE(parse(received(encode(sent), 1)).ok()) << "it has no buffer";
    for (Stream stream : {Stream::kAll, Stream::kSends, Stream::kReceives}) {
      Message other = sent;
      other.stream = stream;
      EXPECT_FALSE(parse(received(encode(other))).ok());
    }
    Message numbered = sent;
    numbered.sequence = 1;
    EXPECT_FALSE(parse(received(encode(numbered))).ok());
  }
}

TEST(GroupMessagesTest, AnAbortNeedsAReason) {
  std::vector<std::byte> bytes = encode(example(MessageKind::kAbort));
  for (int code : {0, 11, 255}) {
    bytes[18] = static_cast<std::byte>(code);
    EXPECT_FALSE(parse(received(bytes)).ok()) << code;
  }
}

TEST(GroupMessagesTest, NoBytesHarmTheReader) {
  std::mt19937 random(test::seedOfRun());
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::byte> bytes = encode(example(kKinds[random() % std::size(kKinds)]));
    for (uint32_t change = random() % 4; change > 0; --change)
      bytes[random() % bytes.size()] = static_cast<std::byte>(random());
    Result<Message> got = parse(received(bytes, random() % 3));
    if (!got.ok()) continue;
    if (got->kind == MessageKind::kStart) {
      EXPECT_TRUE(isOperation(static_cast<uint8_t>(got->description.operation)));
    }
    EXPECT_TRUE(isDataType(static_cast<uint8_t>(got->description.dataType)));
    EXPECT_TRUE(isReduceOp(static_cast<uint8_t>(got->description.reduceOp)));
    EXPECT_EQ(got->status.ok(), got->kind != MessageKind::kAbort);
  }
}

TEST(GroupMessagesTest, DescriptionsReadWell) {
  Description description{OperationKind::kAllReduce, DataType::kFloat32, ReduceOp::kAverage, 0, 170, 0, 0};
  EXPECT_EQ(describe(description), "allReduce (average) of 170 float32");
  EXPECT_EQ(describe(Description{}), "barrier");
  description.operation = OperationKind::kReduce;
  description.root = 2;
  EXPECT_EQ(describe(description), "reduce (average) to the group's rank 2 of 170 float32");
  description.operation = OperationKind::kScatter;
  EXPECT_EQ(describe(description), "scatter from the group's rank 2 of 170 float32");
  EXPECT_EQ(describe(example(MessageKind::kStart).description), "broadcast from the group's rank 3 of 1000 int64");
}

}  // namespace
}  // namespace treadle::group::messages_test

// What comes early, what is too much, and what no member would send.

#include <thread>

#include "tests/core/group/strange_member.h"
#include "tests/support/gate.h"
#include "treadle/core/io/serving.h"

namespace treadle::protocol_test {
namespace {

using group::Message;
using group::MessageKind;
using test::contains;
using test::failureOf;
using test::GroupJob;

TEST(EarlyTest, MessagesForAGroupThatIsNotMadeYetAreKept) {
  GroupJob job(3);
  std::vector<float> a(10, 1), b(10, 2), c(10, 3), large0(1'000'000, 1), large1(1'000'000, 1), large2(1'000'000, 1);
  ProcessGroup first = job.make(0), second = job.make(1);
  std::vector<Future<void>> futures = {allReduce(first, std::span(a)),
                                       allReduce(second, std::span(b)),
                                       allReduce(first, std::span(large0)),
                                       allReduce(second, std::span(large1)),
                                       barrier(first),
                                       barrier(second)};
  ProcessGroup third = job.make(2);
  futures.push_back(allReduce(third, std::span(c)));
  futures.push_back(allReduce(third, std::span(large2)));
  futures.push_back(barrier(third));
  test::waitAll(futures);
  EXPECT_EQ(c, std::vector<float>(10, 6));
  EXPECT_EQ(large2, std::vector<float>(1'000'000, 3));
}

// 90 groups, each with the most that may come early for one group (64 operations of 16 KiB): 90 MiB.
TEST(EarlyTest, TooMuchFailsTheGroupThatSentItOnAllMembers) {
  GroupJob job(2);
  std::vector<std::byte> memory(16 << 10);
  std::vector<ProcessGroup> groups;
  std::vector<std::vector<Future<void>>> futures(90);
  for (auto& some : futures) {
    groups.push_back(job.make(0));
    for (int i = 0; i < 64; ++i)
      some.push_back(allReduce(groups.back(), std::span(reinterpret_cast<uint8_t*>(memory.data()), memory.size())));
  }
  Status why = failureOf(futures.back().front());
  EXPECT_EQ(why.code(), Code::kResourceExhausted) << why.toString();
  EXPECT_TRUE(contains(why.message(), "worker 'w1' (rank 1)")) << why.message();
  EXPECT_FALSE(futures.front().front().ready());
  std::vector<ProcessGroup> theirs;
  for (size_t i = 0; i < groups.size(); ++i) theirs.push_back(job.make(1));
  std::vector<uint8_t> other(memory.size());
  EXPECT_TRUE(failureOf(allReduce(theirs.front(), std::span(other))).ok());
  EXPECT_EQ(failureOf(allReduce(theirs.back(), std::span(other))).code(), Code::kResourceExhausted);
}

class StrangeMemberTest : public test::StrangeMember {
 protected:
  GroupOptions options() const override {
    return {.smallBytes = smallBytes_, .chunkBytes = chunkBytes_, .algorithm = algorithm_};
  }
  Future<void> begin() override { return allReduce(group_, data_.data(), count_, type_); }

  Message start() const {
    Message message;
    message.description = {group::OperationKind::kAllReduce, type_, ReduceOp::kSum, 0, count_, 0, smallBytes_,
                           group_.options().chunkBytes};
    message.description.algorithm = *group::choose(group_.options(), message.description, group_.core().surroundings());
    const size_t members = job_->names().size(), block = (count_ + members - 1) / members;
    message.elements = 2 * block;  // two blocks, around a ring of two as directly
    return message;
  }

  void send(Message message, size_t dataBytes = 0) { sendWith(std::move(message), std::vector<std::byte>(dataBytes)); }

  void failGroup() {
    send(test::abortOfGroup());
    EXPECT_EQ(failureOf(future_).worker(), "w7");
  }

  size_t count_ = 1000;
  group::DataType type_ = group::DataType::kFloat32;
  size_t smallBytes_ = 0, chunkBytes_ = GroupOptions{}.chunkBytes;
  group::Algorithm algorithm_ = group::Algorithm::kAutomatic;
  std::vector<float> data_ = std::vector<float>(1000);  // as large as 2,000 16-bit floats
};

// 68 MB of texts, in far fewer messages than may come early.
TEST_F(StrangeMemberTest, TextsThatComeEarlyCountAgainstTheLimit) {
  Message abort = test::abortOfGroup();
  abort.group = first_.group + 1;
  abort.status = cancelled(std::string(4096, 'x'));
  const std::vector<std::byte> bytes = encode(abort);
  for (int i = 0; i < 17'000; ++i) sendRaw(bytes);
  listener_.aborts_.waitFor(1);
}

TEST_F(StrangeMemberTest, BytesThatAreNoMessage) {
  sendRaw({std::byte{1}, std::byte{2}});
  expectCutOff("a group's message");
}

// A stream between two has its own order, and what is wrong in it ends the group.
TEST_F(StrangeMemberTest, AChunkOfASendThatHasNotBegun) {
  Message chunk;
  chunk.kind = MessageKind::kChunk;
  chunk.stream = group::Stream::kSends;
  send(chunk, 2000);
  expectCutOff("the sends from w1 to w0");
}

TEST_F(StrangeMemberTest, TheStartOfASendTwice) {
  Message begun = start();
  begun.stream = group::Stream::kReceives;
  begun.description.operation = group::OperationKind::kSend;
  send(begun);
  send(begun);
  expectCutOff("the sends from w0 to w1");
}

TEST_F(StrangeMemberTest, ASendTooFarAhead) {
  Message begun = start();
  begun.stream = group::Stream::kSends;
  begun.sequence = group::kAhead;
  send(begun);
  expectCutOff("too far ahead in the sends from w1 to w0");
}

TEST_F(StrangeMemberTest, ACollectiveOperationInAStreamOfTwo) {
  Message begun = start();
  begun.stream = group::Stream::kSends;
  send(begun);
  std::vector<std::byte> memory(4000);
  const Status why = failureOf(recv(group_, MutableBytes(memory), 1));
  EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
  EXPECT_TRUE(contains(why.message(), "allReduce (sum) of 1000 float32")) << why.message();
}

TEST_F(StrangeMemberTest, AChunkOfTheWrongSizeInARunningSend) {
  std::vector<std::byte> memory(4000);
  Future<void> receiving = recv(group_, MutableBytes(memory), 1);
  Message begun = start();
  begun.stream = group::Stream::kSends;
  begun.description.operation = group::OperationKind::kSend;
  begun.description.dataType = group::DataType::kUint8;
  begun.description.count = begun.elements = memory.size();
  begun.description.algorithm = group::Algorithm::kRing;
  send(begun);
  Message chunk;
  chunk.kind = MessageKind::kChunk;
  chunk.stream = group::Stream::kSends;
  send(chunk, 3999);
  EXPECT_FALSE(failureOf(receiving).ok());
  EXPECT_TRUE(contains(failureOf(receiving).message(), "wrong size"));
}

TEST_F(StrangeMemberTest, ASendInAGroupThatHasFailed) {
  failGroup();
  std::vector<std::byte> memory(8);
  EXPECT_EQ(failureOf(recv(group_, MutableBytes(memory), 1)).worker(), "w7") << "a stream that was not used before";
}

// A stream that fails may answer a start with the abort of the group, which is for all streams.
TEST(MemberLinkTest, TheAbortOfAGroupHasNoStream) {
  struct Listener final : cluster::MessageHandler {
    void onMessage(int, const std::shared_ptr<link::Connection>&, link::Message message) override {
      if (auto parsed = group::parse(std::move(message)); parsed.ok()) heard.set(std::move(*parsed));
    }
    void onLost(int, const Status&) override {}
    Promise<Message> heard;
  } listener;
  Future<Message> heard = listener.heard.future();
  test::LocalJob job(
      2, [&](test::LocalWorker& worker) { worker.membership->setHandler(link::Subject::kGroup, listener); });
  const group::MemberLink all(*job.worker(0).membership, 7, {{"w0", 0}, {"w1", 1}}, 0);
  EXPECT_TRUE(all.between(1, group::Stream::kSends).sendToOthers(test::abortOfGroup()).ok());
  const Message got = heard.wait(test::kPatience);
  EXPECT_EQ(got.group, 7U);
  EXPECT_EQ(got.stream, group::Stream::kAll);
}

TEST_F(StrangeMemberTest, AStartTwice) {
  send(start());
  send(start());
  expectCutOff("twice");
}

TEST_F(StrangeMemberTest, AChunkBeforeTheStart) {
  Message chunk;
  chunk.kind = MessageKind::kChunk;
  send(chunk, 2000);
  expectCutOff("had not begun");
}

TEST_F(StrangeMemberTest, AChunkOfTheWrongSize) {
  send(start());
  Message chunk;
  chunk.kind = MessageKind::kChunk;
  send(chunk, 1999);
  expectCutOff("wrong size");
}

TEST_F(StrangeMemberTest, AChunkOutOfOrder) {
  send(start());
  Message chunk;
  chunk.kind = MessageKind::kChunk;
  chunk.position = 1;
  send(chunk, 2000);
  expectCutOff("a chunk where none was due");
}

TEST_F(StrangeMemberTest, AnAcknowledgementOfWhatWasNotSent) {
  send(start());
  Message ack;
  ack.kind = MessageKind::kAck;
  ack.position = 100;
  send(ack);
  expectCutOff("what was not sent");
}

// A block of 1,000 16-bit floats, which one member combines, has 32 chunks here. The window is 16 chunks.
class StrangeHalvesTest : public StrangeMemberTest {
 protected:
  StrangeHalvesTest() {
    type_ = group::DataType::kFloat16;
    count_ = 2000;
    chunkBytes_ = kChunkBytes;
  }

  void sendChunk(uint64_t position, size_t dataBytes = kChunkBytes) {
    Message chunk;
    chunk.kind = MessageKind::kChunk;
    chunk.position = position;
    send(chunk, dataBytes);
  }

  static constexpr size_t kChunkBytes = 64;
  static constexpr uint64_t kChunks = 32, kWindow = 16;
};

TEST_F(StrangeHalvesTest, AShareTwice) {
  send(start());
  sendChunk(0);
  sendChunk(0);
  expectCutOff("a chunk where none was due");
}

TEST_F(StrangeHalvesTest, AShareOfTheWrongSize) {
  send(start());
  sendChunk(0, kChunkBytes + 2);
  expectCutOff("wrong size");
}

TEST_F(StrangeHalvesTest, AResultBeforeTheShares) {
  send(start());
  sendChunk(kChunks);
  expectCutOff("a chunk where none was due");
}

TEST_F(StrangeHalvesTest, AnAcknowledgementTwice) {
  send(start());
  Message ack;
  ack.kind = MessageKind::kAck;
  ack.position = 1;
  send(ack);
  send(ack);
  expectCutOff("what was not sent");
}

// The other members of three have not begun, so no chunk becomes complete.
class StrangeHalvesOfThreeTest : public StrangeHalvesTest {
 protected:
  StrangeHalvesOfThreeTest() { size_ = 3; }
};

TEST_F(StrangeHalvesOfThreeTest, MoreSharesThanAWindow) {
  send(start());
  for (uint64_t share = 0; share <= kWindow / 2; ++share) sendChunk(share);
  expectCutOff("a chunk where none was due");
}

// A small operation of three, which waits for the third.
class StrangeSmallTest : public StrangeMemberTest {
 protected:
  StrangeSmallTest() {
    size_ = 3;
    smallBytes_ = 1 << 16;
  }

  Message smallStart() const {
    Message message = start();
    message.elements = count_;
    return message;
  }
};

TEST_F(StrangeSmallTest, AChunk) {
  Message chunk;
  chunk.kind = MessageKind::kChunk;
  chunk.position = 1;
  send(smallStart(), count_ * sizeof(float));
  send(chunk, count_ * sizeof(float));
  expectCutOff("a chunk where none was due");
}

TEST_F(StrangeSmallTest, AnAcknowledgement) {
  Message ack;
  ack.kind = MessageKind::kAck;
  ack.position = 1;
  send(smallStart(), count_ * sizeof(float));
  send(ack);
  expectCutOff("what was not sent");
}

TEST_F(StrangeSmallTest, DataOfTheWrongSize) {
  send(smallStart(), 8);
  expectCutOff("data of another size than it said");
}

TEST_F(StrangeSmallTest, OtherElementsThanItsDescriptionSays) {
  Message message = smallStart();
  message.elements = 1;
  send(message, 4);
  const Status why = failureOf(future_);
  EXPECT_EQ(why.code(), Code::kInvalidArgument) << why.toString();
  EXPECT_TRUE(contains(why.message(), "sends 1 elements")) << why.message();
}

class StrangeRingTest : public StrangeMemberTest {
 protected:
  StrangeRingTest() {
    smallBytes_ = 1 << 16;
    algorithm_ = group::Algorithm::kRing;
  }
};

TEST_F(StrangeRingTest, DataWithAStart) {
  send(start(), 4000);
  expectCutOff("too early");
}

TEST_F(StrangeMemberTest, MoreDataWithAStartThanSmallBytes) {
  send(start(), 4000);
  expectCutOff("more data than smallBytes");
}

TEST_F(StrangeMemberTest, AnOperationFarAhead) {
  Message ahead = start();
  ahead.sequence = 1 + group::kAhead;
  send(ahead);
  expectCutOff("too far ahead");
}

TEST_F(StrangeMemberTest, DataOfAnOperationThatIsNotBegunHere) {
  Message chunk;
  chunk.kind = MessageKind::kChunk;
  chunk.sequence = 5;
  send(chunk, 8);
  expectCutOff("has not begun");
}

TEST_F(StrangeMemberTest, AnAbortFailsTheOperationAndNotTheGroup) {
  Message abort;
  abort.kind = MessageKind::kAbort;
  abort.status = internalError("no more");
  send(abort);
  EXPECT_EQ(failureOf(future_).message(), "no more");
  Message next = start();
  next.sequence = 1;
  next.description = {};
  next.description.chunkBytes = group_.options().chunkBytes;
  next.description.algorithm = group::Algorithm::kExchange;
  next.elements = 0;
  Future<void> second = barrier(group_);
  send(next);
  EXPECT_TRUE(failureOf(second).ok());
}

TEST_F(StrangeMemberTest, AnAbortOfTheGroupFailsItForGood) {
  failGroup();
  EXPECT_EQ(failureOf(barrier(group_)).worker(), "w7");
}

TEST(AbortTest, OverALossCountsAsTheFirstLoss) {
  GroupJob job(3);
  Message abort;
  abort.kind = MessageKind::kAbort;
  abort.status = peerLost("w2", "worker 'w2' (rank 2) was lost");
  cluster::Membership &from = *job.local().worker(1).membership, &to = *job.local().worker(0).membership;
  ASSERT_TRUE(from.send(0, link::Subject::kGroup, encode(abort), {}, link::SendMode::kUrgent, kNever).ok());
  EXPECT_TRUE(test::eventually([&] { return to.firstLoss().worker() == "w2"; }));
}

class HeldTurnTest : public StrangeMemberTest {
 protected:
  HeldTurnTest() { holdsALoss_ = true; }

  // A chunk before the start: the thread with the operation's turn closes the connection and so tells of the loss. The
  // sender closes nothing in turn, or another thread might tell of the loss first.
  void holdTurn() {
    job_->worker(1).membership->finish();
    Message chunk;
    chunk.kind = MessageKind::kChunk;
    send(chunk, 2000);
    bystander_.heard.wait();
  }
};

TEST_F(HeldTurnTest, IsNotWaitedForByAThreadThatReadsAndCancels) {
  holdTurn();
  Future<void> all = whenAll(std::vector{future_}), next = future_.then([] {});
  {
    const io::Serving reads;
    all.cancel();
    next.cancel();
  }
  EXPECT_FALSE(bystander_.goesOn.isOpen());
  for (const Future<void>& one : {future_, all, next}) EXPECT_FALSE(one.ready()) << "its memory is in use";
  bystander_.goesOn.open();
  for (const Future<void>& one : {future_, all, next}) EXPECT_FALSE(failureOf(one).ok());
}

// A `cancel` that does not wait fails this test only as a rule: the gate opens at any moment.
TEST_F(HeldTurnTest, IsWaitedForByOtherThreads) {
  holdTurn();
  std::thread opens([&] { bystander_.goesOn.open(); });
  future_.cancel();
  EXPECT_TRUE(bystander_.goesOn.isOpen());
  EXPECT_TRUE(future_.ready());
  opens.join();
}

// As above. The group has failed before, and its operation still has a turn.
TEST_F(HeldTurnTest, IsWaitedForByTheEndOfAGroupThatHasFailed) {
  holdTurn();
  group_.core().abandon(cancelled("it failed before"));
  std::thread opens([&] { bystander_.goesOn.open(); });
  worker_->groups().close(cancelled("this worker leaves"));
  EXPECT_TRUE(bystander_.goesOn.isOpen());
  EXPECT_TRUE(future_.ready());
  opens.join();
}

// While no thread handles them, a member that heeds no window could fill the memory: it is cut off before.
TEST_F(StrangeMemberTest, ChunksBeyondEachWindowThatNobodyHasHandled) {
  const auto goesOn = std::make_shared<test::Gate>();
  for (int i = 0; i < 64; ++i) job_->worker(0).executor->post([goesOn] { goesOn->wait(); });
  send(start());
  Message chunk;
  chunk.kind = MessageKind::kChunk;
  for (int i = 0; i < 40; ++i) send(chunk, chunkBytes_);
  expectCutOff("more of an operation");
  // Not before the operation has ended: its thread may find first that these chunks have the wrong size.
  goesOn->open();
}

using ReadingThreadDeathTest = StrangeMemberTest;

TEST_F(ReadingThreadDeathTest, DoesNotCloseAGroupForThatWaits) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");  // a fork could find locks held by the job's threads
  const io::Serving reads;
  EXPECT_DEATH(worker_->groups().close(cancelled("it leaves")), "must not close a group");
}

}  // namespace
}  // namespace treadle::protocol_test

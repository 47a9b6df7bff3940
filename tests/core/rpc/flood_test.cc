// A peer that sends requests without regard to the limit, made of a bare membership or a bare socket: it is refused,
// and what it costs is bounded.
#include <sys/socket.h>

#include "tests/support/gate.h"
#include "tests/support/local_job.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/rpc/engine.h"
#include "treadle/core/wire/frame.h"

namespace treadle::rpc::flood_test {
namespace {

using test::eventually;

constexpr size_t kLimit = 1 << 20, kSendLimit = 1 << 20, kLarge = 100'000;

struct Thing {
  void keep() {}
};
void count(uint64_t counter, const std::string&) { reinterpret_cast<test::Counter*>(counter)->add(); }

Functions functions() {
  Functions all;
  all.add<&Thing::keep>("keep").add<&count>("count").addType<Thing>("Thing");
  return all;
}

std::unique_ptr<Engine> engineOf(test::LocalWorker& worker) {
  return std::make_unique<Engine>(*worker.membership, *worker.reactor, *worker.executor, functions(), nullptr,
                                  EngineOptions{.maxInFlightBytes = kLimit, .maxQueuedBytes = kSendLimit}, nullptr);
}

const GlobalId kThing{1, 1};  // of the peer's making, once it asks for it

MessageHeader requestOf(uint64_t id, const std::string& function, const std::string& signature) {
  MessageHeader header;
  header.id = id;
  header.timeLeftUs = UINT64_MAX;
  header.function = function;
  header.signature = signatureHash(signature);
  return header;
}

// It waits for its object, and is not answered before that is made.
MessageHeader keep(uint64_t id) {
  MessageHeader header = requestOf(id, "keep", Signature<&Thing::keep>::text());
  header.target = kThing;
  return header;
}

class Flood : public ::testing::Test {
 protected:
  class Listener final : public cluster::MessageHandler {
   public:
    void onMessage(int, const std::shared_ptr<link::Connection>& from, link::Message message) override {
      wire::Reader reader(message.payload);
      Result<MessageHeader> header = parseHeader(reader, 2);
      ASSERT_TRUE(header.ok());
      if (header->type != MessageType::kAnswer) return;
      from->answerArrived();
      {
        MutexLock lock(mutex_);
        answers_[header->id].push_back(header->status);
      }
      count.add();
    }
    void onLost(int, const Status&) override {}
    std::map<uint64_t, std::vector<Status>> answers() const {
      MutexLock lock(mutex_);
      return answers_;
    }
    test::Counter count;

   private:
    mutable Mutex mutex_;
    std::map<uint64_t, std::vector<Status>> answers_;
  };

  ~Flood() override {
    engine->close(cancelled("the test is over"));
    job.reset();
  }

  void send(const MessageHeader& header, size_t bufferBytes = 0) {
    wire::Writer payload;
    encodeHeader(payload, header);
    send(header.type, payload.bytes(), bufferBytes);
  }
  void send(MessageType type, Bytes payload, size_t bufferBytes) {
    Buffer buffer = allocateBuffer(bufferBytes);
    auto connection = valueOrThrow(job->worker(1).membership->outgoing(0));
    if (type == MessageType::kRequest) connection->awaitAnswer(false);
    throwIfError(connection->send(link::Subject::kRpc, payload, {&buffer, bufferBytes > 0 ? 1U : 0U},
                                  link::SendMode::kUrgent, kNever));
  }
  // A call of `count`, with so many bytes.
  void sendCount(uint64_t id, test::Counter& counter, size_t bytes = 0) {
    wire::Writer payload;
    encodeHeader(payload, requestOf(id, "count", Signature<&count>::text()));
    payload.number(reinterpret_cast<uint64_t>(&counter));
    payload.string(std::string(bytes, 'x'));
    send(MessageType::kRequest, payload.bytes(), 0);
  }

  Listener listener;
  std::unique_ptr<Engine> engine;
  std::unique_ptr<test::LocalJob> job = std::make_unique<test::LocalJob>(2, [this](test::LocalWorker& worker) {
    if (worker.membership->self().rank == 1) return worker.membership->setHandler(link::Subject::kRpc, listener);
    engine = engineOf(worker);
    worker.membership->setHandler(link::Subject::kRpc, *engine);
  });
};

TEST_F(Flood, isRefusedBeyondTheLimitAndNothingOfItIsRun) {
  constexpr int kKept = kLimit / (kLarge + 512), kSent = 100;
  for (int id = 1; id <= kSent; ++id) send(keep(static_cast<uint64_t>(id)), kLarge);
  test::Counter ran;
  sendCount(500, ran, kLimit);
  listener.count.waitFor(kSent - kKept + 1);
  for (const auto& [id, statuses] : listener.answers()) {
    EXPECT_GT(id, uint64_t{kKept});
    ASSERT_EQ(1U, statuses.size());
    EXPECT_EQ(Code::kResourceExhausted, statuses[0].code());
    for (const char* part : {"worker 'w0' (rank 0)", "worker 'w1' (rank 1)", "limit of 1048576", "maxInFlightBytes"})
      EXPECT_NE(std::string::npos, statuses[0].message().find(part)) << statuses[0].message();
  }
  EXPECT_EQ(0, ran.count());
  EXPECT_LE(engine->counts().bytesToAnswer, kLimit);
  // The last refusal may be here before its call is out of the table.
  EXPECT_TRUE(test::eventually([&] { return engine->counts().running == size_t{kKept}; }));
  // What fits is served.
  sendCount(501, ran);
  ran.waitFor(1);
}

TEST_F(Flood, ofOneRequestLargerThanTheLimitIsServed) {
  test::Counter ran;
  send(keep(1));
  sendCount(2, ran, 3 * kLimit);
  ran.waitFor(1);
}

// Cancelled once, many times, when it has been answered, when it never was: its bytes are given back once.
TEST_F(Flood, ofCancellationsGivesNothingBackTwice) {
  auto cancel = [&](uint64_t id) {
    MessageHeader header;
    header.type = MessageType::kCancel;
    header.id = id;
    send(header);
  };
  test::Counter ran;
  send(keep(1), kLarge);
  send(keep(2));
  for (uint64_t id : {1, 1, 2, 1, 3}) cancel(id);
  sendCount(4, ran);
  listener.count.waitFor(3);  // who waits and is cancelled is answered at once
  MessageHeader make = requestOf(5, "Thing", makerSignature<Thing>());
  make.result = ForkEntry{kThing, 0, {1, 2}};
  send(make);
  listener.count.waitFor(4);
  for (uint64_t id : {1, 2, 5}) cancel(id);
  sendCount(6, ran);
  listener.count.waitFor(5);
  auto answers = listener.answers();
  for (uint64_t id : {1, 2, 4, 5, 6}) EXPECT_EQ(1U, answers[id].size()) << id;
  for (uint64_t id : {1, 2}) EXPECT_EQ(Code::kCancelled, answers[id].at(0).code());
  EXPECT_TRUE(test::eventuallyReleased([&] { return engine->counts().bytesToAnswer == 0; }));
}

// Of values that will never be: nothing is kept of them when who asked has given up.
TEST_F(Flood, ofWaitsForNothingLeavesNothing) {
  test::Counter ran;
  for (uint64_t id = 1; id <= 200; ++id) {
    MessageHeader header = keep(id);
    header.target = GlobalId{1, 1000 + id};
    header.inputs = {{0, {1, 2000 + id}, 0}, {1, {1, 3000 + id}, 1}};
    send(header);
    MessageHeader cancel;
    cancel.type = MessageType::kCancel;
    cancel.id = id;
    send(cancel);
  }
  sendCount(201, ran);
  ran.waitFor(1);
  EXPECT_TRUE(eventually([&] { return engine->counts().running == 0; }));
  EXPECT_TRUE(test::eventuallyReleased([&] { return engine->references().counts().owned == 0; }));
  EXPECT_EQ(1, ran.count());
}

TEST_F(Flood, ofALostPeerIsForgotten) {
  for (uint64_t id = 1; id <= 5; ++id) send(keep(id), kLarge);
  EXPECT_TRUE(eventually([&] { return engine->counts().running == 5; }));
  job->kill(1);
  EXPECT_TRUE(test::eventuallyReleased([&] { return engine->counts().bytesToAnswer == 0; }));
}

// It reads nothing of what it is told: its refusals pile up, and at twice what may be queued for it it is cut off.
TEST(DeafFlood, isCutOff) {
  int ends[2];
  ASSERT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
  io::Fd theirs(ends[1]);
  cluster::MembershipOptions options{.heartbeatTimeout = std::chrono::seconds(60), .connection = {}};
  test::LocalWorker worker({"w0", 0}, 2, options, {});
  std::unique_ptr<Engine> engine = engineOf(worker);
  worker.membership->setHandler(link::Subject::kRpc, *engine);
  throwIfError(worker.membership->attach({"w1", 1}, io::Fd(ends[0]), link::Connection::Kind::kServing));
  constexpr uint64_t kMost = 100'000;  // far more than it takes
  uint64_t sent = 0;
  for (bool cutOff = false; !cutOff && sent < kMost;) {
    wire::Writer payload;
    encodeHeader(payload, keep(++sent));
    std::vector<std::byte> frame = wire::frameFront(wire::FrameKind::kMessage, 2, payload.bytes());
    cutOff = !io::writeAll(theirs.get(), frame, deadlineAfter(test::kHangs)).ok();
  }
  EXPECT_LT(sent, kMost);
  EXPECT_TRUE(eventually([&] { return !worker.membership->firstLoss().ok(); }));
  Status why = worker.membership->firstLoss();
  EXPECT_EQ("w1", why.worker());
  EXPECT_NE(std::string::npos, why.message().find("does not read what it is told")) << why.message();
  worker.executor->stop();
  engine->close(cancelled("the test is over"));
}

}  // namespace
}  // namespace treadle::rpc::flood_test

// A peer that lies about memory and sizes: what harms nobody is refused with a reason, what breaks the rules loses the
// peer, whose name and lie the loss tells.

#include <fcntl.h>
#include <sys/mman.h>

#include <cstring>

#include "tests/faults/survivor.h"
#include "tests/support/stream_on.h"
#include "treadle/core/link/frame_reader.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::lies_test {
namespace {

using link::Connection;
using test::contains;
using test::kVictimBytes;
using wire::BufferEntry;
using wire::FrameKind;
using wire::Place;

constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
constexpr size_t kPage = 4096;

io::Fd memfd(size_t sizeBytes, int seals) {
  io::Fd fd(::memfd_create("liar", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(0, ::ftruncate(fd.get(), static_cast<off_t>(sizeBytes)));
  EXPECT_EQ(0, ::fcntl(fd.get(), F_ADD_SEALS, seals));
  return fd;
}

Result<link::Frame> next(const io::Fd& from) {
  io::Stream stream = test::streamOn(from.get());
  return link::readOneFrame(stream, {}, deadlineAfter(test::kHangs));
}

// A worker and the two sockets by which it is connected to a liar, whose part the test plays.
class Lies : public ::testing::Test {
 protected:
  Lies() {
    cluster::MembershipOptions options{.heartbeatTimeout = test::kHangs, .connection = {}};
    options.connection.pool = pool.get();
    options.connection.threads = &laneThreads;
    options.connection.offerBytes = 1;
    options.connection.limits.bufferBytes = 64 * kVictimBytes;
    options.lendLimitBytes = 16 * kVictimBytes;
    options.lanes = true;
    worker = std::make_unique<cluster::Membership>(*reactor, WorkerInfo{"worker", 0}, 2, options);
    worker->setHandler(link::Subject::kRpc, mailbox);
    auto [calls, itsServing] = sockets();
    auto [serving, itsCalls] = sockets();
    throwIfError(worker->attach({"liar", 1}, std::move(calls), Connection::Kind::kCalls));
    throwIfError(worker->attach({"liar", 1}, std::move(serving), Connection::Kind::kServing));
    asked = std::move(itsServing);
    asks = std::move(itsCalls);
    throwIfError(next(asked).status());  // the worker's own arena
  }
  ~Lies() override {
    worker->finish();
    reactor.stop();
    worker->close("", Clock::now());
  }

  static TimePoint patience() { return deadlineAfter(test::kHangs); }
  static std::pair<io::Fd, io::Fd> sockets() {
    int ends[2];
    EXPECT_EQ(0, ::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends));
    return {io::Fd(ends[0]), io::Fd(ends[1])};
  }
  void write(Bytes bytes) const { throwIfError(io::writeAll(asks.get(), bytes, patience())); }
  void message(const BufferEntry& entry) const {
    write(wire::frameFront(FrameKind::kMessage, static_cast<uint8_t>(link::Subject::kRpc), {}, std::array{entry}));
  }
  // What the worker says to this descriptor: empty when it has mapped it.
  std::string offer(const io::Fd& descriptor) const {
    test::sendWithDescriptor(asks, wire::frameFront(FrameKind::kArena, 0, {}), descriptor.get());
    link::Frame reply = valueOrThrow(next(asks));
    EXPECT_EQ(FrameKind::kMapped, reply.header.kind);
    wire::Reader reader(reply.payload);
    return reader.string(Connection::kReasonBytes);
  }
  // What the worker says to a table of offers at that place: empty when it can read it.
  std::string tell(uint64_t address, uint64_t mark) const {
    wire::Writer place;
    place.number(address);
    place.number(mark);
    write(wire::frameFront(FrameKind::kTable, 0, place.bytes()));
    link::Frame reply = valueOrThrow(next(asks));
    EXPECT_EQ(FrameKind::kReadable, reply.header.kind);
    wire::Reader reader(reply.payload);
    return reader.string(Connection::kReasonBytes);
  }
  void expectLossFor(const std::string& lie) {
    mailbox.lost.waitFor(1);
    Status why = mailbox.losses().at(0).second;
    EXPECT_EQ("liar", why.worker());
    EXPECT_TRUE(contains(why.message(), "worker 'liar' (rank 1) was lost"));
    EXPECT_TRUE(contains(why.message(), lie));
    EXPECT_TRUE(test::eventuallyReleased([&] { return pool->counters().usedBytes == 0; }));
  }

  const std::shared_ptr<memory::BlockPool> pool = valueOrThrow(memory::BlockPool::make(64 * kVictimBytes));
  test::Mailbox mailbox;
  io::ThreadCache laneThreads;
  test::ReactorThread reactor;
  std::unique_ptr<cluster::Membership> worker;
  io::Fd asked, asks;  // the liar's ends
};

// ---- descriptors: refused with a reason, after which bytes go through the socket

class LyingDescriptor : public Lies {
 protected:
  void expectRefusal(const io::Fd& descriptor, const std::string& reason) {
    testing::internal::CaptureStderr();
    EXPECT_TRUE(contains(offer(descriptor), reason));
    std::string log = testing::internal::GetCapturedStderr();
    EXPECT_TRUE(contains(log, "worker 'liar' (rank 1)"));
    EXPECT_TRUE(contains(log, reason));
    write(wire::frameFront(FrameKind::kMessage, static_cast<uint8_t>(link::Subject::kRpc), {}));
    mailbox.arrived.waitFor(1);
    EXPECT_EQ(0, mailbox.lost.count());
    // It shares nothing, so it can lend nothing.
    message({kPage, Place::kLent, 0});
    expectLossFor("it lent memory outside of what it shares");
  }
};

TEST_F(LyingDescriptor, thatIsNoMemory) {
  expectRefusal(io::Fd(::open("/dev/zero", O_RDWR | O_CLOEXEC)), "not sealed");
}
TEST_F(LyingDescriptor, thatIsAFile) {
  expectRefusal(io::Fd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), "not sealed");
}
TEST_F(LyingDescriptor, thatCouldShrink) { expectRefusal(memfd(kVictimBytes, F_SEAL_GROW), "not sealed"); }
TEST_F(LyingDescriptor, whoseSealsCouldChange) {
  expectRefusal(memfd(kVictimBytes, F_SEAL_SHRINK | F_SEAL_GROW), "not sealed");
}
TEST_F(LyingDescriptor, ofNoSize) { expectRefusal(memfd(0, kAllSeals), "of no size"); }
TEST_F(LyingDescriptor, thatNobodyMayWriteTo) {
  expectRefusal(memfd(kVictimBytes, kAllSeals | F_SEAL_WRITE), "nobody may write to");
}
TEST_F(LyingDescriptor, ofMoreThanAnyAddressSpace) {
  expectRefusal(memfd(size_t{1} << 60, kAllSeals), "no address space is left");
}

TEST_F(LyingDescriptor, thatDidNotCome) {
  write(wire::frameFront(FrameKind::kArena, 0, {}));
  link::Frame reply = valueOrThrow(next(asks));
  wire::Reader reader(reply.payload);
  EXPECT_TRUE(contains(reader.string(Connection::kReasonBytes), "did not arrive"));
}

// ---- what loses the peer

TEST_F(Lies, ofASecondArena) {
  EXPECT_EQ("", offer(memfd(kVictimBytes, kAllSeals)));
  test::sendWithDescriptor(asks, wire::frameFront(FrameKind::kArena, 0, {}), memfd(kPage, kAllSeals).get());
  expectLossFor("it shared its memory twice");
}

// One that was cut down before it was sealed is as large as it is now, whatever it was.
TEST_F(Lies, ofPlacesBeyondATruncatedArena) {
  io::Fd cut = memfd(kVictimBytes, F_SEAL_GROW);
  EXPECT_EQ(0, ::ftruncate(cut.get(), 2 * kPage));
  EXPECT_EQ(0, ::fcntl(cut.get(), F_ADD_SEALS, kAllSeals));
  EXPECT_EQ("", offer(cut));
  message({kPage, Place::kLent, kPage});
  mailbox.arrived.waitFor(1);
  mailbox.take();
  message({kPage, Place::kLent, 2 * kPage});
  expectLossFor("it lent memory outside of what it shares");
}

TEST_F(Lies, ofABlockThatEndsBeyondTheArena) {
  EXPECT_EQ("", offer(memfd(kVictimBytes, kAllSeals)));
  message({kPage + 1, Place::kLent, kVictimBytes - kPage});
  expectLossFor("it lent memory outside of what it shares");
}

TEST_F(Lies, ofNothingInNoArena) {
  message({0, Place::kLent, 0});
  expectLossFor("it lent memory outside of what it shares");
}

TEST_F(Lies, ofAPlaceThatWrapsAround) {
  EXPECT_EQ("", offer(memfd(kVictimBytes, kAllSeals)));
  message({kPage, Place::kLent, UINT64_MAX - 63});
  expectLossFor("it lent memory outside of what it shares");
}

class LyingPulse : public Lies {
 protected:
  void tell(uint64_t offset) {
    write(wire::frameFront(FrameKind::kHeartbeat, 0, std::as_bytes(std::span(&offset, 1))));
  }
};

TEST_F(LyingPulse, beyondItsArena) {
  EXPECT_EQ("", offer(memfd(kVictimBytes, kAllSeals)));
  tell(kVictimBytes);
  expectLossFor("it has its pulse outside of what it shares");
}
TEST_F(LyingPulse, thatWrapsAround) {
  EXPECT_EQ("", offer(memfd(kVictimBytes, kAllSeals)));
  tell(UINT64_MAX - 63);
  expectLossFor("it has its pulse outside of what it shares");
}
TEST_F(LyingPulse, thatIsNotAligned) {
  EXPECT_EQ("", offer(memfd(kVictimBytes, kAllSeals)));
  tell(4);
  expectLossFor("it has its pulse outside of what it shares");
}
TEST_F(LyingPulse, withoutMemory) {
  tell(0);
  expectLossFor("it has its pulse outside of what it shares");
}
TEST_F(LyingPulse, ofTwo) {
  EXPECT_EQ("", offer(memfd(kVictimBytes, kAllSeals)));
  tell(0);
  tell(64);
  expectLossFor("it has a second pulse");
}
TEST_F(LyingPulse, cutShort) {
  write(wire::frameFront(FrameKind::kHeartbeat, 0, std::vector<std::byte>(7)));
  expectLossFor("it tells unreadably where its pulse is");
}

TEST_F(Lies, ofABlockThatItDoesNotHold) {
  message({kPage, Place::kReturned, 0});
  expectLossFor("it returned memory that it does not hold");
}

TEST_F(Lies, ofSizesOverTheLimit) {
  message({64 * kVictimBytes + 1, Place::kInline, 0});
  expectLossFor("over the limit");
}

TEST_F(Lies, ofSizesThatNoMemoryHas) {
  message({wire::kMostBufferBytes, Place::kLent, 0});
  expectLossFor("over the limit");
}

TEST_F(Lies, ofABufferOnLanesThatGrows) {
  auto [lane, its] = sockets();
  ASSERT_TRUE(worker->attachLane(1, std::move(lane), link::Purpose::kRequestLane).ok());
  message({kVictimBytes, Place::kOnLanes, 1});
  mailbox.heralded.waitFor(1);
  throwIfError(io::writeAll(its.get(), wire::pieceFront({1, 0, 2 * kVictimBytes, kPage}), patience()));
  expectLossFor("it gave a buffer two sizes");
}

TEST_F(Lies, ofATableThatIsNotThere) {
  EXPECT_TRUE(contains(tell(16, 1), "there is no memory at that address"));
  message({kPage, Place::kOffered, 1});
  expectLossFor("it offered memory that nobody reads");
}

TEST_F(Lies, ofASecondTable) {
  auto table = std::make_shared<link::OfferTable>();
  EXPECT_EQ("", tell(table->address(), table->mark()));
  write(wire::frameFront(FrameKind::kTable, 0, std::vector<std::byte>(16)));
  expectLossFor("it offered its memory twice");
}

TEST_F(Lies, ofATableCutShort) {
  write(wire::frameFront(FrameKind::kTable, 0, std::vector<std::byte>(15)));
  expectLossFor("it offered its memory unreadably");
}

TEST_F(Lies, ofOfferedMemoryThatIsNotThere) {
  auto table = std::make_shared<link::OfferTable>();
  void* data = ::mmap(nullptr, kVictimBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  link::MemoryOffer offer(table, std::array{Buffer::borrow(data, kVictimBytes)}, 1);
  ::mprotect(data, kVictimBytes, PROT_NONE);  // unmapped, its place might be taken by the memory that it is read into
  EXPECT_EQ("", tell(table->address(), table->mark()));
  message({kVictimBytes, Place::kOffered, offer.number(0)});
  message({kVictimBytes, Place::kOffered, 77});  // nobody made that offer
  mailbox.failed.waitFor(2);                     // and harms nobody else
  write(wire::frameFront(FrameKind::kMessage, static_cast<uint8_t>(link::Subject::kRpc), {}));
  mailbox.arrived.waitFor(1);
  EXPECT_EQ(0, mailbox.lost.count());
  ::munmap(data, kVictimBytes);
}

TEST_F(Lies, ofAnAnswerToATableThatNobodyTold) {
  throwIfError(
      io::writeAll(asked.get(), wire::frameFront(FrameKind::kReadable, 0, std::vector<std::byte>(4)), patience()));
  expectLossFor("it answered an offer of memory that nobody made");
}

TEST_F(Lies, ofAPieceBeyondItsBuffer) {
  auto [lane, its] = sockets();
  ASSERT_TRUE(worker->attachLane(1, std::move(lane), link::Purpose::kRequestLane).ok());
  throwIfError(io::writeAll(its.get(), wire::pieceFront({1, kVictimBytes - 1, kVictimBytes, kPage}), patience()));
  expectLossFor("a part of a buffer that is not missing");
}

}  // namespace
}  // namespace treadle::lies_test

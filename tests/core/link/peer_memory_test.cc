#include "treadle/core/link/peer_memory.h"

#include <sys/mman.h>

#include <array>

#include "gtest/gtest.h"
#include "tests/core/link/lent_blocks.h"
#include "treadle/core/base/error.h"

namespace treadle::link::peer_memory_test {
namespace {

using test::arenaOf;
using test::blockOf;
using test::bytesOf;
using test::kMiB;
using wire::BufferEntry;
using wire::Place;

// Two workers' memories that know each other.
struct Two {
  explicit Two(size_t lendLimit = 64 * kMiB)
      : aPool(valueOrThrow(memory::BlockPool::make(64 * kMiB))),
        bPool(valueOrThrow(memory::BlockPool::make(64 * kMiB))),
        a(std::make_shared<PeerMemory>(aPool.get(), lendLimit)),
        b(std::make_shared<PeerMemory>(bPool.get(), lendLimit)) {
    throwIfError(a->setPeerArena(arenaOf(*bPool)));
    throwIfError(b->setPeerArena(arenaOf(*aPool)));
    a->setMapped({});
    b->setMapped({});
  }
  ~Two() {
    a->close();
    b->close();
  }

  std::shared_ptr<memory::BlockPool> aPool, bPool;
  std::shared_ptr<PeerMemory> a, b;
};

TEST(PeerMemory, lendsACopyThatComesBackWhenThePeerIsDone) {
  Two two;
  std::vector<std::byte> bytes = bytesOf(kMiB, 5);
  BufferEntry entry = two.a->place(Buffer::borrow(bytes.data(), bytes.size()));
  ASSERT_EQ(Place::kLent, entry.place);
  bytes[0] = std::byte{9};
  {
    Buffer got = valueOrThrow(two.b->resolve(entry));
    EXPECT_EQ(bytesOf(kMiB, 5), std::vector<std::byte>(got.data, got.data + got.sizeBytes));
    EXPECT_EQ(kMiB, two.aPool->counters().usedBytes);
    EXPECT_TRUE(two.b->takeReleases().empty());
  }
  std::vector<uint64_t> releases = two.b->takeReleases();
  EXPECT_EQ(std::vector<uint64_t>{entry.at}, releases);
  EXPECT_TRUE(two.a->released(releases).ok());
  EXPECT_EQ(0U, two.aPool->counters().usedBytes);
}

TEST(PeerMemory, movesABlockThatIsGivenAndTakesItBackWithoutACopy) {
  Two two;
  BufferEntry there = two.a->place(blockOf(*two.aPool, kMiB, 7));
  ASSERT_EQ(Place::kLent, there.place);
  EXPECT_EQ(1U, two.aPool->counters().allocations);
  Buffer at = valueOrThrow(two.b->resolve(there));
  at.data[3] = std::byte{8};
  at.given = true;
  BufferEntry back = two.b->place(at);
  EXPECT_EQ((BufferEntry{kMiB, Place::kReturned, there.at}), back);
  at = {};
  EXPECT_TRUE(two.b->takeReleases().empty());  // the block itself went
  Buffer again = valueOrThrow(two.a->resolve(back));
  EXPECT_EQ(std::byte{8}, again.data[3]);
  EXPECT_EQ(std::byte{7}, again.data[4]);
  EXPECT_EQ(1U, two.aPool->counters().allocations);
  EXPECT_EQ(0U, two.bPool->counters().allocations);
  again = {};
  EXPECT_EQ(0U, two.aPool->counters().usedBytes);
}

TEST(PeerMemory, copiesWhatIsNotGivenOrNotWholeOrAnothers) {
  Two two;
  Buffer own = blockOf(*two.aPool, kMiB, 1);
  own.given = false;
  EXPECT_NE(static_cast<memory::Block&>(*own.owner).offset(), two.a->place(own).at);
  own.given = true;
  Buffer part{own.data + 4096, kMiB / 2, own.owner, true};
  EXPECT_NE(static_cast<memory::Block&>(*own.owner).offset() + 4096, two.a->place(part).at);
  Buffer others = blockOf(*two.bPool, kMiB, 1);  // lies in b's arena, but b has not lent it
  EXPECT_EQ(Place::kLent, two.a->place(others).place);
  EXPECT_EQ(4U, two.aPool->counters().allocations);
}

TEST(PeerMemory, sendsThroughTheSocketWhenItCannotShare) {
  Two two(kMiB);
  std::vector<std::byte> bytes = bytesOf(kMiB, 1);
  Buffer borrowed = Buffer::borrow(bytes.data(), bytes.size());
  EXPECT_EQ(Place::kLent, two.a->place(borrowed).place);
  EXPECT_EQ(Place::kInline, two.a->place(borrowed).place);  // over the limit
  PeerMemory unmapped(two.aPool.get(), 64 * kMiB);
  EXPECT_EQ(Place::kInline, unmapped.place(borrowed).place);
  unmapped.close();
  PeerMemory none(nullptr, 0);
  EXPECT_EQ(nullptr, none.arena());
  EXPECT_EQ(Code::kFailedPrecondition, none.setPeerArena(arenaOf(*two.bPool)).code());
  EXPECT_EQ(Place::kInline, none.place(borrowed).place);
  none.close();
}

TEST(PeerMemory, takesBackWhatAMessageThatWasNotSentWouldHaveLent) {
  Two two;
  std::vector<std::byte> bytes = bytesOf(kMiB, 1);
  BufferEntry lent = two.a->place(Buffer::borrow(bytes.data(), bytes.size()));
  two.a->takeBack(std::array{lent});
  EXPECT_EQ(0U, two.aPool->counters().usedBytes);
  EXPECT_FALSE(two.a->released(std::array{lent.at}).ok());
}

// Who leaves ends its two connections one after the other, and what it said last may still be unread on the second.
TEST(PeerMemory, isThereUntilTheLastConnectionEnds) {
  Two two;
  for (int i = 0; i < 2; ++i) two.b->addConnection();
  BufferEntry lent = two.a->place(blockOf(*two.aPool, kMiB, 1)), late = two.a->place(blockOf(*two.aPool, kMiB, 2));
  two.b->removeConnection();
  EXPECT_EQ(kMiB, valueOrThrow(two.b->resolve(lent)).sizeBytes);
  two.b->removeConnection();
  EXPECT_EQ(Code::kPeerLost, two.b->resolve(late).status().code());
}

TEST(PeerMemory, tellsReleasesAgainThatWereNotSent) {
  Two two;
  BufferEntry lent = two.a->place(blockOf(*two.aPool, kMiB, 1));
  valueOrThrow(two.b->resolve(lent));
  std::vector<uint64_t> releases = two.b->takeReleases();
  two.b->takeBack({}, releases);
  EXPECT_EQ(std::vector<uint64_t>{lent.at}, two.b->takeReleases());
}

// ---- a peer that lies

TEST(PeerMemory, refusesPlacesThatCannotBe) {
  Two two;
  size_t arena = two.aPool->arena().bytes().size();
  for (BufferEntry entry : {BufferEntry{1, Place::kLent, arena}, BufferEntry{2, Place::kLent, arena - 1},
                            BufferEntry{arena + 1, Place::kLent, 0}, BufferEntry{1, Place::kLent, UINT64_MAX},
                            BufferEntry{64, Place::kLent, 32}, BufferEntry{(uint64_t{1} << 56) - 1, Place::kLent, 4096},
                            BufferEntry{1, Place::kReturned, 0}, BufferEntry{1, Place::kReturned, UINT64_MAX}})
    EXPECT_EQ(Code::kDataLoss, two.b->resolve(entry).status().code());
  EXPECT_EQ(Code::kDataLoss, two.b->released(std::array{uint64_t{0}}).code());
}

TEST(PeerMemory, refusesABlockThatIsLentOrReturnedTwice) {
  Two two;
  BufferEntry lent = two.a->place(blockOf(*two.aPool, kMiB, 1));
  Buffer held = valueOrThrow(two.b->resolve(lent));
  EXPECT_EQ(Code::kDataLoss, two.b->resolve(lent).status().code());
  BufferEntry returned{kMiB, Place::kReturned, lent.at};
  Buffer again = valueOrThrow(two.a->resolve(returned));
  EXPECT_EQ(Code::kDataLoss, two.a->resolve(returned).status().code());
  BufferEntry lentAgain = two.a->place(Buffer{again.data, kMiB, std::move(again.owner), true});
  EXPECT_EQ(Code::kDataLoss, two.a->resolve({2 * kMiB, Place::kReturned, lentAgain.at}).status().code());  // it grew
}

TEST(PeerMemory, refusesAnArenaThatCouldBeCutOffOrASecondOne) {
  Two two;
  io::Fd unsealed(::memfd_create("test", MFD_CLOEXEC));
  ASSERT_EQ(0, ::ftruncate(unsealed.get(), kMiB));
  auto memory = std::make_shared<PeerMemory>(two.bPool.get(), 0);
  EXPECT_EQ(Code::kDataLoss, memory->setPeerArena(std::move(unsealed)).code());
  EXPECT_TRUE(memory->setPeerArena(arenaOf(*two.aPool)).ok());
  EXPECT_EQ(Code::kFailedPrecondition, memory->setPeerArena(arenaOf(*two.aPool)).code());
  memory->close();
}

// ---- ends

TEST(PeerMemory, leavesBorrowedBytesReadableWhenThePeerIsGone) {
  Two two;
  BufferEntry lent = two.a->place(blockOf(*two.aPool, kMiB, 4));
  Buffer held = valueOrThrow(two.b->resolve(lent));
  two.a->close();
  two.aPool.reset();
  two.b->close();
  EXPECT_EQ(std::byte{4}, held.data[kMiB - 1]);
}

TEST(PeerMemory, doesNotUseAgainWhatALostPeerMayStillWriteTo) {
  Two two;
  BufferEntry lent = two.a->place(blockOf(*two.aPool, kMiB, 4));
  Buffer held = valueOrThrow(two.b->resolve(lent));
  two.a->close();  // nobody can tell whether the other process has ended
  for (int i = 0; i < 50; ++i) {
    auto block = two.aPool->allocate(kMiB);
    if (!block) break;
    EXPECT_NE(lent.at, block->offset());
    block->fill(bytesOf(kMiB, 5));
  }
  EXPECT_EQ(std::byte{4}, held.data[0]);
}

TEST(PeerMemory, asksToBeVisitedOncePerBatchOfReleases) {
  Two two;
  int asked = 0;
  two.b->setReleaseHook([&] { ++asked; });
  std::vector<Buffer> held;
  for (int i = 0; i < 3; ++i) held.push_back(valueOrThrow(two.b->resolve(two.a->place(blockOf(*two.aPool, kMiB, i)))));
  held.clear();
  EXPECT_EQ(1, asked);
  EXPECT_EQ(3U, two.b->takeReleases().size());
  held.push_back(valueOrThrow(two.b->resolve(two.a->place(blockOf(*two.aPool, kMiB, 9)))));
  two.b->close();
  held.clear();
  EXPECT_EQ(1, asked);  // a closed one is visited by nobody
}

}  // namespace
}  // namespace treadle::link::peer_memory_test

#include "treadle/core/link/offered_memory.h"

#include <sys/mman.h>

#include <thread>

#include "tests/core/link/connected_pair.h"
#include "tests/support/sanitizer.h"
#include "tests/support/seeds.h"

namespace treadle::link::offered_memory_test {
namespace {

constexpr size_t kMiB = 1U << 20;

// A caller's table and a callee that reads it: both of this process.
class OfferedMemory : public ::testing::Test {
 protected:
  Result<std::shared_ptr<OfferReader>> readerOf(uint64_t address, uint64_t mark) const {
    return OfferReader::make(sockets.a.get(), address, mark, pool.get(), 64 * kMiB);
  }
  // Its bytes, as the callee gets them.
  Result<Buffer> read(uint64_t number, size_t sizeBytes) const {
    const std::array entries = {wire::BufferEntry{sizeBytes, wire::Place::kOffered, number}};
    std::array<Buffer, 1> buffers;
    auto reading = reader->announce(entries, buffers);
    if (!reading.ok()) return std::move(reading).status();
    Status told = internalError("nobody told how it ended");
    reading->arrival->whenWhole([&](const Status& how) { told = how; });
    Status how = reader->read(*reading);
    reader->finish(*reading, how);
    EXPECT_EQ(how.toString(), told.toString());
    return how.ok() ? Result<Buffer>(buffers[0]) : how;
  }

  const Sockets sockets;
  const std::shared_ptr<memory::BlockPool> pool = valueOrThrow(memory::BlockPool::make(256 * kMiB));
  const std::shared_ptr<OfferTable> table = std::make_shared<OfferTable>();
  const std::shared_ptr<OfferReader> reader = valueOrThrow(readerOf(table->address(), table->mark()));
};

TEST_F(OfferedMemory, isReadWhereItLies) {
  for (size_t size : {size_t{1}, size_t{4097}, kMiB - 1, 3 * kMiB + 5}) {
    std::array buffers = {filledBuffer(size, 7)};
    MemoryOffer offer(table, buffers, 1);
    Result<Buffer> got = read(offer.number(0), size);
    ASSERT_TRUE(got.ok()) << got.status().toString();
    EXPECT_NE(buffers[0].data, got->data);
    EXPECT_TRUE(allBytesAre(got->bytes(), 7));
  }
}

TEST_F(OfferedMemory, isOnlyWhatIsLargeEnough) {
  std::array buffers = {filledBuffer(99, 1), filledBuffer(100, 1)};
  MemoryOffer offer(table, buffers, 100);
  EXPECT_EQ(0U, offer.number(0));
  EXPECT_NE(0U, offer.number(1));
}

TEST_F(OfferedMemory, isNotReadOnceItIsWithdrawn) {
  uint64_t number = 0;
  {
    MemoryOffer offer(table, std::array{filledBuffer(kMiB, 1)}, 1);
    number = offer.number(0);
  }
  EXPECT_EQ(Code::kCancelled, read(number, kMiB).status().code());
  MemoryOffer next(table, std::array{filledBuffer(kMiB, 2)}, 1);
  EXPECT_EQ(Code::kCancelled, read(number, kMiB).status().code()) << "a number never comes again";
}

// Whatever the moment at which the caller stops waiting and writes to its buffer: what was read is what was sent.
TEST_F(OfferedMemory, isReadAsItWasOfferedOrNotAtAll) {
  test::forSeeds(40, [&](test::Random& random) {
    Buffer buffer = filledBuffer(24 * kMiB, 1);
    auto offer = std::make_unique<MemoryOffer>(table, std::array{buffer}, 1);
    const uint64_t number = offer->number(0);
    const auto pause = std::chrono::microseconds(test::pick(random, 6000));
    test::Gate started;
    std::thread caller([&] {
      started.open();
      std::this_thread::sleep_for(pause);
      offer.reset();
      std::fill_n(buffer.data, buffer.sizeBytes, std::byte{99});
    });
    started.wait();
    Result<Buffer> got = read(number, buffer.sizeBytes);
    caller.join();
    EXPECT_TRUE(got.ok() ? allBytesAre(got->bytes(), 1) : got.status().code() == Code::kCancelled)
        << got.status().toString();
  });
}

TEST_F(OfferedMemory, hasAsManyPlacesAsItsTable) {
  std::vector<Buffer> buffers(OfferTable::kSlots + 3, filledBuffer(10, 1));
  {
    MemoryOffer offer(table, buffers, 1);
    for (size_t i = 0; i < buffers.size(); ++i) EXPECT_EQ(i >= OfferTable::kSlots, offer.number(i) == 0) << i;
  }
  MemoryOffer again(table, buffers, 1);
  EXPECT_NE(0U, again.number(0));
}

TEST_F(OfferedMemory, isAskedForOnlyOnceItIsKnownToBeReadable) {
  EXPECT_EQ(Code::kDataLoss, readerOf(16, table->mark()).status().code());
  EXPECT_EQ(Code::kFailedPrecondition, readerOf(table->address(), table->mark() + 1).status().code());
  Sockets tcp = tcpSockets();
  auto none = OfferReader::make(tcp.a.get(), table->address(), table->mark(), nullptr, kMiB);
  EXPECT_EQ(Code::kFailedPrecondition, none.status().code());
}

TEST_F(OfferedMemory, thatIsNotThereIsSaidToBeSo) {
  void* data = ::mmap(nullptr, kMiB, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  MemoryOffer offer(table, std::array{Buffer::borrow(data, kMiB)}, 1);
  ::munmap(data, kMiB);
  EXPECT_EQ(Code::kDataLoss, read(offer.number(0), kMiB).status().code());
}

TEST_F(OfferedMemory, ofAnyNumberIsRefusedWhenNobodyGaveIt) {
  MemoryOffer offer(table, std::array{filledBuffer(kMiB, 1)}, 1);
  for (uint64_t number : {uint64_t{0}, offer.number(0) + OfferTable::kSlots, UINT64_MAX})
    EXPECT_EQ(Code::kCancelled, read(number, kMiB).status().code()) << number;
}

TEST_F(OfferedMemory, isTakenUpToALimit) {
  const std::array entries = {wire::BufferEntry{40 * kMiB, wire::Place::kOffered, 1}};
  std::array<Buffer, 1> buffers;
  auto first = reader->announce(entries, buffers);
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(Code::kResourceExhausted, reader->announce(entries, buffers).status().code());
  reader->finish(*first, cancelled("the test says so"));
  EXPECT_TRUE(reader->announce(entries, buffers).ok());
}

// What cannot be had counts for nothing afterwards.
TEST_F(OfferedMemory, thatNoMemoryIsForIsRefusedAndForgotten) {
  if (test::kSanitized) GTEST_SKIP() << "sanitizers end a program that asks for so much";
  constexpr uint64_t kTooMuch = uint64_t{1} << 60;
  OfferReader unlimited(valueOrThrow(io::ProcessMemory::ofPeer(sockets.a.get())), table->address(), table->mark(),
                        pool.get(), kTooMuch + kMiB);
  const std::array entries = {wire::BufferEntry{kTooMuch, wire::Place::kOffered, 1}};
  std::array<Buffer, 1> buffers;
  for (int i = 0; i < 3; ++i) {
    Status why = unlimited.announce(entries, buffers).status();
    EXPECT_EQ(Code::kResourceExhausted, why.code());
    EXPECT_NE(std::string::npos, why.message().find("no memory for tensors")) << why.message();
  }
}

TEST_F(OfferedMemory, isWaitedForUntilTheConnectionEnds) {
  const std::array entries = {wire::BufferEntry{kMiB, wire::Place::kOffered, 1}};
  std::array<Buffer, 1> buffers;
  auto reading = reader->announce(entries, buffers);
  ASSERT_TRUE(reading.ok());
  int told = 0;
  reading->arrival->whenWhole([&](const Status& how) {
    EXPECT_EQ(Code::kPeerLost, how.code());
    ++told;
  });
  reader->close(peerLost("x", "it is gone"));
  EXPECT_EQ(1, told);
  reader->finish(*reading, {});  // whoever reads comes to its end too
  EXPECT_EQ(1, told);
  EXPECT_FALSE(reader->announce(entries, buffers).ok());
}

}  // namespace
}  // namespace treadle::link::offered_memory_test

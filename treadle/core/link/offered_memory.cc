#include "treadle/core/link/offered_memory.h"

#include <sys/random.h>

#include "treadle/core/base/clock.h"

// Budget of a buffer: at the sender two locks of the table and two stores; at the receiver two process_vm_readv of the
// table before and two after each 16 MiB, one for each piece of the copier (128 KiB to 1 MiB), two locks, one copy, and
// a thread of the cache for all buffers of a message.
namespace treadle::link {
namespace {

// After so many bytes it is looked whether anybody still wants them.
constexpr size_t kLookBytes = 16U << 20;

// No secret: it has to differ from what happens to lie in another process.
uint64_t markOfThisProcess() {
  uint64_t number = 0;
  if (::getrandom(&number, sizeof number, 0) == static_cast<ssize_t>(sizeof number)) return number;
  return static_cast<uint64_t>(Clock::now().time_since_epoch().count());
}

}  // namespace

static_assert(sizeof(OfferTable::Layout) == 8 + 16 * OfferTable::kSlots && std::atomic<uint64_t>::is_always_lock_free);

OfferTable::OfferTable() { layout_.mark = markOfThisProcess(); }

// A number is never given twice, and says by itself which slot it has.
std::optional<uint64_t> OfferTable::offer(const Buffer& buffer) {
  MutexLock lock(mutex_);
  for (size_t tries = 0; tries < kSlots; ++tries) {
    Slot& slot = layout_.slots[++last_ % kSlots];
    if (slot.number.load() != 0) continue;
    slot.address.store(reinterpret_cast<uint64_t>(buffer.data));
    slot.number.store(last_);
    return last_;
  }
  return std::nullopt;
}

void OfferTable::withdraw(uint64_t number) {
  MutexLock lock(mutex_);
  layout_.slots[number % kSlots].number.store(0);
  std::atomic_thread_fence(std::memory_order_seq_cst);  // before any write to the buffer that follows
}

MemoryOffer::MemoryOffer(std::shared_ptr<OfferTable> table, std::span<const Buffer> buffers, size_t smallestBytes)
    : table_(std::move(table)), buffers_(buffers.begin(), buffers.end()), numbers_(buffers.size()) {
  for (size_t i = 0; i < buffers.size(); ++i)
    if (buffers[i].sizeBytes >= smallestBytes) numbers_[i] = table_->offer(buffers[i]).value_or(0);
}

MemoryOffer::~MemoryOffer() {
  for (uint64_t number : numbers_)
    if (number != 0) table_->withdraw(number);
}

Result<std::shared_ptr<OfferReader>> OfferReader::make(int socket, uint64_t address, uint64_t mark,
                                                       memory::BlockPool* pool, uint64_t limitBytes) {
  Result<io::ProcessMemory> peer = io::ProcessMemory::ofPeer(socket);
  if (!peer.ok()) return std::move(peer).status();
  uint64_t found = 0;
  TREADLE_RETURN_IF_ERROR(peer->read(address, std::as_writable_bytes(std::span(&found, 1))));
  if (found != mark) return failedPrecondition("other bytes were read than are there");
  return std::make_shared<OfferReader>(*peer, address, mark, pool, limitBytes);
}

Result<OfferReader::Reading> OfferReader::announce(std::span<const wire::BufferEntry> entries,
                                                   std::span<Buffer> buffers) {
  Reading reading{{}, std::make_shared<Arrival>(1), 0};
  for (const wire::BufferEntry& entry : entries)
    if (entry.place == wire::Place::kOffered) reading.bytes += entry.sizeBytes + kBookkeepingBytes;
  {
    MutexLock lock(mutex_);
    TREADLE_RETURN_IF_ERROR(closed_);
    if (open_.size() >= kMostReadings)
      return resourceExhausted("tensors of over " + std::to_string(kMostReadings) + " messages are under way at once");
    if (reading.bytes > limitBytes_ - openBytes_)
      return resourceExhausted("tensors of over " + std::to_string(limitBytes_) + " bytes are under way at once");
    openBytes_ += reading.bytes;
    open_.insert(reading.arrival);
  }
  try {
    for (size_t i = 0; i < entries.size(); ++i) {
      if (entries[i].place != wire::Place::kOffered) continue;
      buffers[i] = memory::allocateFrom(pool_, entries[i].sizeBytes);
      reading.offers.emplace_back(entries[i].at, buffers[i]);
    }
  } catch (const std::bad_alloc&) {
    Status none = resourceExhausted("no memory for tensors of " + std::to_string(reading.bytes) + " bytes");
    finish(reading, none);
    return none;
  }
  return reading;
}

// Where the bytes of an offer lie, when it still stands.
Result<uint64_t> OfferReader::addressOf(uint64_t number) const {
  std::array<uint64_t, 3> found{};  // the mark, and the slot
  auto bytes = std::as_writable_bytes(std::span(found));
  const uint64_t slot = address_ + offsetof(OfferTable::Layout, slots) + number % OfferTable::kSlots * 16;
  TREADLE_RETURN_IF_ERROR(peer_.read(address_, bytes.first(8)));
  TREADLE_RETURN_IF_ERROR(peer_.read(slot, bytes.last(16)));
  if (found[0] != mark_) return cancelled("its process is another one now");
  if (found[1] != number || number == 0) return cancelled("the caller did not wait until its tensors were read");
  return found[2];
}

Status OfferReader::readOne(uint64_t number, MutableBytes to) {
  Result<uint64_t> address = addressOf(number);
  for (size_t done = 0; address.ok() && done < to.size(); done += kLookBytes) {
    Status part = readPart(*address + done, to.subspan(done, std::min(kLookBytes, to.size() - done)));
    std::atomic_thread_fence(std::memory_order_seq_cst);  // the bytes were read before the slot is read again
    address = addressOf(number);
    if (address.ok() && !part.ok()) return part;
    if (ended_.load()) return cancelled("the connection has ended");
  }
  return address.status();
}

Status OfferReader::readPart(uint64_t address, MutableBytes to) {
  std::atomic<bool> failed = false;
  Mutex mutex;
  Status first;
  copier_.copy(to.size(), [&](size_t offset, size_t size) {
    if (failed.load()) return;
    Status read = peer_.read(address + offset, to.subspan(offset, size));
    if (read.ok() || failed.exchange(true)) return;
    MutexLock lock(mutex);
    first = std::move(read);
  });
  return first;
}

Status OfferReader::read(const Reading& reading) {
  for (const auto& [number, buffer] : reading.offers)
    TREADLE_RETURN_IF_ERROR(readOne(number, {buffer.data, buffer.sizeBytes}));
  return {};
}

void OfferReader::finish(const Reading& reading, const Status& how) {
  {
    MutexLock lock(mutex_);
    openBytes_ -= reading.bytes;
    open_.erase(reading.arrival);
  }
  if (how.ok()) return reading.arrival->oneMore();
  reading.arrival->fail(how);
}

void OfferReader::close(const Status& why) {
  ended_.store(true);
  std::set<std::shared_ptr<Arrival>> open;
  {
    MutexLock lock(mutex_);
    if (closed_.ok()) closed_ = why;
    open.swap(open_);
  }
  for (const auto& arrival : open) arrival->fail(why);
}

}  // namespace treadle::link

// The connection's part in reading a caller's memory (offered_memory.h): the caller tells where its table of offers
// lies, on the connection that it dialed and when no memory can be shared with the peer; the callee tries whether it
// can read there, says so, and from then on reads what is offered, each message on a thread of its own.

#include "treadle/core/link/connection.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::link {
namespace {

// Of a message that never comes whole. Its sender is answered so, and the connection goes on: the caller may have
// stopped waiting, or have memory that nobody can read.
std::shared_ptr<Arrival> failedArrival(const Status& why) {
  auto arrival = std::make_shared<Arrival>(1);
  arrival->fail(why);
  return arrival;
}

}  // namespace

void Connection::tellTable() {
  if (!stream_.isUnix() || options_.offerBytes == 0 || closed_.load() || tableTold_.exchange(true)) return;
  wire::Writer payload;
  {
    MutexLock lock(offerMutex_);
    offers_ = std::make_shared<OfferTable>();
    payload.number(offers_->address());
    payload.number(offers_->mark());
  }
  awaitAnswer(false);  // or nobody would read the reply
  sendControl(wire::FrameKind::kTable, payload.bytes());
}

void Connection::onTable(const Frame& frame) {
  wire::Reader reader(frame.payload);
  auto address = reader.number<uint64_t>();
  auto mark = reader.number<uint64_t>();
  if (!reader.ok() || reader.left() != 0) return close(dataLoss("it offered its memory unreadably"));
  if (!stream_.isUnix() || kind_ != Kind::kServing)
    return close(dataLoss("it offered its memory where nobody reads it"));
  if (tableTold_.exchange(true)) return close(dataLoss("it offered its memory twice"));
  Status can = options_.offerBytes > 0 && options_.threads != nullptr
                   ? Status()
                   : failedPrecondition("reading memory is not among the channels that it may use");
  if (can.ok()) {
    auto made = OfferReader::make(stream_.fd(), address, mark, options_.pool, options_.underWayBytes(true));
    can = made.status();
    MutexLock lock(offerMutex_);
    if (made.ok() && !closed_.load()) offerReader_ = std::move(*made);  // or nobody would close it
  }
  if (!can.ok()) sink_.onRefusal(*this, can.withContext("this worker does not read its memory"));
  sendReason(wire::FrameKind::kReadable, can.message());
}

void Connection::onReadable(const Frame& frame) {
  std::optional<std::string> reason = reasonOf(frame);
  if (!reason) return close(dataLoss("it answered an offer of memory unreadably"));
  MutexLock lock(offerMutex_);
  if (!tableTold_.load() || readable_.load() || !notReadable_.ok())
    return lock.unlock(), close(dataLoss("it answered an offer of memory that nobody made"));
  if (!reason->empty()) notReadable_ = failedPrecondition("the peer cannot read it: " + *reason);
  readable_.store(reason->empty());
  lock.unlock();
  answerArrived();
}

std::shared_ptr<MemoryOffer> Connection::offer(std::span<const Buffer> buffers) const {
  if (!readable_.load()) return nullptr;
  bool large = false;
  for (const Buffer& buffer : buffers) large = large || buffer.sizeBytes >= options_.offerBytes;
  if (!large) return nullptr;
  MutexLock lock(offerMutex_);
  return std::make_shared<MemoryOffer>(offers_, buffers, options_.offerBytes);
}

Status Connection::offering() const {
  if (readable_.load()) return {};
  if (!stream_.isUnix()) return failedPrecondition("memory is read over UNIX sockets only, and the connection is TCP");
  if (options_.offerBytes == 0) return failedPrecondition("this worker lets nobody read its memory");
  if (sharing().ok()) return failedPrecondition("not needed: memory is shared");
  MutexLock lock(offerMutex_);
  if (!notReadable_.ok()) return notReadable_;
  return failedPrecondition("the peer has not said yet whether it can");
}

// The message is handed up meanwhile, and what comes after it is read.
Result<std::shared_ptr<Arrival>> Connection::startReading(std::span<const wire::BufferEntry> entries,
                                                          std::span<Buffer> buffers) {
  std::shared_ptr<OfferReader> reader;
  {
    MutexLock lock(offerMutex_);
    reader = offerReader_;
  }
  if (!reader) return dataLoss("it offered memory that nobody reads");
  auto announced = reader->announce(entries, buffers);
  if (!announced.ok()) return failedArrival(announced.status());
  UniqueFunction<void()> task = [self = shared_from_this(), reader, reading = *announced] {
    Status how = reader->read(reading);
    ReadScope here(*self);
    reader->finish(reading, how);
  };
  if (!options_.threads->run(task)) reader->finish(*announced, resourceExhausted("there is no thread to read them"));
  return announced->arrival;
}

void Connection::closeOffers(const Status& why) {
  std::shared_ptr<OfferReader> reader;
  {
    MutexLock lock(offerMutex_);
    reader = offerReader_;
  }
  if (reader) reader->close(why);
}

}  // namespace treadle::link

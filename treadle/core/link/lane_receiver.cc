#include "treadle/core/link/lane_receiver.h"

namespace treadle::link {

// The buffer of that number, new or known. Memory is taken when the first is heard of it, while its bytes still flow.
Result<LaneReceiver::IncomingBuffers::iterator> LaneReceiver::find(uint64_t number, uint64_t totalBytes) {
  TREADLE_RETURN_IF_ERROR(closed_);
  if (auto found = incoming_.find(number); found != incoming_.end()) {
    if (found->second.buffer.sizeBytes != totalBytes) return dataLoss("it gave a buffer two sizes");
    return found;
  }
  if (totalBytes == 0) return dataLoss("it sent an empty buffer in pieces");
  if (totalBytes + kBookkeepingBytes > limitBytes_ - openBytes_ || totalBytes > limitBytes_)
    return resourceExhausted("tensors of over " + std::to_string(limitBytes_) + " bytes are under way at once");
  Incoming incoming;
  try {
    incoming.buffer = memory::allocateFrom(pool_, totalBytes);
  } catch (const std::bad_alloc&) {
    return resourceExhausted("no memory for a tensor of " + std::to_string(totalBytes) + " bytes");
  }
  incoming.missing = memory::FreeRanges(totalBytes);
  incoming.unfilled = totalBytes;
  openBytes_ += totalBytes + kBookkeepingBytes;
  return incoming_.emplace(number, std::move(incoming)).first;
}

void LaneReceiver::erase(IncomingBuffers::iterator whole) {
  openBytes_ -= whole->second.buffer.sizeBytes + kBookkeepingBytes;
  incoming_.erase(whole);
}

Result<Buffer> LaneReceiver::memoryFor(const wire::Piece& piece) {
  MutexLock lock(mutex_);
  auto incoming = find(piece.number, piece.totalBytes);
  if (!incoming.ok()) return std::move(incoming).status();
  Incoming& one = (*incoming)->second;
  if (!one.missing.takeAt(piece.offsetBytes, piece.sizeBytes))
    return dataLoss("it sent a part of a buffer that is not missing");
  return Buffer{one.buffer.data + piece.offsetBytes, piece.sizeBytes, one.buffer.owner};
}

bool LaneReceiver::filled(const wire::Piece& piece) {
  MutexLock lock(mutex_);
  auto found = incoming_.find(piece.number);
  if (found == incoming_.end()) return false;
  found->second.unfilled -= piece.sizeBytes;
  if (found->second.unfilled > 0 || !found->second.announced) return false;
  std::shared_ptr<Arrival> arrival = std::move(found->second.arrival);
  erase(found);
  lock.unlock();
  if (arrival) arrival->oneMore();  // none yet while its announcement fails
  return true;
}

Result<std::shared_ptr<Arrival>> LaneReceiver::announce(std::span<const wire::BufferEntry> entries,
                                                        std::span<Buffer> buffers) {
  MutexLock lock(mutex_);
  std::vector<IncomingBuffers::iterator> missing;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].place != wire::Place::kOnLanes) continue;
    auto incoming = find(entries[i].at, entries[i].sizeBytes);
    if (!incoming.ok()) return std::move(incoming).status();
    if (std::exchange((*incoming)->second.announced, true)) return dataLoss("it announced a buffer twice");
    buffers[i] = (*incoming)->second.buffer;
    if ((*incoming)->second.unfilled > 0) {
      missing.push_back(*incoming);
    } else {
      erase(*incoming);
    }
  }
  if (missing.empty()) return std::shared_ptr<Arrival>();
  auto arrival = std::make_shared<Arrival>(missing.size());
  for (auto& incoming : missing) incoming->second.arrival = arrival;
  return arrival;
}

void LaneReceiver::clear(const Status& why) {
  IncomingBuffers incoming;
  {
    MutexLock lock(mutex_);
    if (closed_.ok()) closed_ = why;
    incoming.swap(incoming_);
    openBytes_ = 0;
  }
  for (auto& [number, one] : incoming)
    if (one.arrival) one.arrival->fail(why);
}

}  // namespace treadle::link

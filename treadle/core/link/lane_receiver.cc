#include "treadle/core/link/lane_receiver.h"

namespace treadle::link {

// The buffer of that number, new or known. Memory is taken when the first is heard of it, while its bytes still flow.
Result<LaneReceiver::Incoming*> LaneReceiver::find(uint64_t number, uint64_t totalBytes) {
  if (auto found = incoming_.find(number); found != incoming_.end()) {
    if (found->second.buffer.sizeBytes != totalBytes) return dataLoss("it gave a buffer two sizes");
    return &found->second;
  }
  if (totalBytes == 0) return dataLoss("it sent an empty buffer in pieces");
  if (totalBytes > limitBytes_ - openBytes_)
    return resourceExhausted("tensors of over " + std::to_string(limitBytes_) + " bytes are under way at once");
  Incoming incoming;
  try {
    incoming.buffer = memory::allocateFrom(pool_, totalBytes);
  } catch (const std::bad_alloc&) {
    return resourceExhausted("no memory for a tensor of " + std::to_string(totalBytes) + " bytes");
  }
  incoming.missing = memory::FreeRanges(totalBytes);
  incoming.unfilled = totalBytes;
  openBytes_ += totalBytes;
  return &incoming_.emplace(number, std::move(incoming)).first->second;
}

Result<Buffer> LaneReceiver::memoryFor(const wire::PieceHeader& piece, uint64_t sizeBytes) {
  MutexLock lock(mutex_);
  Result<Incoming*> incoming = find(piece.number, piece.totalBytes);
  if (!incoming.ok()) return std::move(incoming).status();
  Incoming& one = **incoming;
  if (!one.missing.takeAt(piece.offsetBytes, sizeBytes))
    return dataLoss("it sent a part of a buffer that is not missing");
  return Buffer{one.buffer.data + piece.offsetBytes, sizeBytes, one.buffer.owner};
}

std::vector<Message> LaneReceiver::filled(const wire::PieceHeader& piece, uint64_t sizeBytes) {
  std::vector<Message> whole;
  MutexLock lock(mutex_);
  auto found = incoming_.find(piece.number);
  if (found == incoming_.end()) return whole;
  found->second.unfilled -= sizeBytes;
  collect(piece.number, whole);
  return whole;
}

// Moves a buffer that is whole and announced to its message, and the message out when nothing is missing any more.
void LaneReceiver::collect(uint64_t number, std::vector<Message>& whole) {
  auto found = incoming_.find(number);
  if (found->second.unfilled > 0 || found->second.message == 0) return;
  auto parked = parked_.find(found->second.message);
  openBytes_ -= found->second.buffer.sizeBytes;
  parked->second.message.buffers[found->second.index] = std::move(found->second.buffer);
  incoming_.erase(found);
  if (--parked->second.missing > 0) return;
  whole.push_back(std::move(parked->second.message));
  parked_.erase(parked);
}

Result<std::vector<Message>> LaneReceiver::announce(Message message, std::span<const wire::BufferEntry> entries) {
  std::vector<Message> whole;
  MutexLock lock(mutex_);
  uint64_t id = ++lastParked_;
  Parked& parked = parked_.emplace(id, Parked{std::move(message), 0}).first->second;
  for (const wire::BufferEntry& entry : entries) parked.missing += entry.place == wire::Place::kOnLanes ? 1 : 0;
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].place != wire::Place::kOnLanes) continue;
    Result<Incoming*> incoming = find(entries[i].at, entries[i].sizeBytes);
    if (!incoming.ok()) return std::move(incoming).status();
    if ((*incoming)->message != 0) return dataLoss("it announced a buffer twice");
    (*incoming)->message = id;
    (*incoming)->index = i;
    collect(entries[i].at, whole);
  }
  return whole;
}

void LaneReceiver::clear() {
  std::map<uint64_t, Incoming> incoming;  // freed after the lock is let go
  std::map<uint64_t, Parked> parked;
  MutexLock lock(mutex_);
  incoming.swap(incoming_);
  parked.swap(parked_);
  openBytes_ = 0;
  lock.unlock();
}

}  // namespace treadle::link

#include "treadle/core/group/large_operation.h"

namespace treadle::group {

// The permit may have come before.
void LargeOperation::onBegin() {
  tellOthers({});
  sendToAll();
}

void LargeOperation::onPermit() {
  permitted_ = true;
  sendToAll();
}

void LargeOperation::onStarted(int member, Buffer data) {
  if (data.sizeBytes != 0) return violated(member, "data too early");
  sendTo(member);
}

void LargeOperation::sendChunk(int member, uint64_t position, Range range) {
  Message chunk = message(MessageKind::kChunk);
  chunk.position = position;
  MutableBytes bytes = bytesOf(range);
  chunk.data = Buffer::borrow(bytes.data(), bytes.size());
  send(member, std::move(chunk));
}

void LargeOperation::sendAck(int member, uint64_t positions) {
  Message ack = message(MessageKind::kAck);
  ack.position = positions;
  send(member, std::move(ack));
}

void LargeOperation::send(int member, Message message) {
  if (Status sent = link().send(member, std::move(message)); !sent.ok()) finish(sent.withContext(text()));
}

MutableBytes LargeOperation::bytesOf(Range range) const {
  const size_t elementBytes = sizeOf(description().dataType);
  return memory().subspan(range.begin * elementBytes, range.count() * elementBytes);
}

}  // namespace treadle::group

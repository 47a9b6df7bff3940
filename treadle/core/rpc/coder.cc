#include "treadle/core/rpc/coder.h"

namespace treadle::rpc {

uint32_t Encoder::addReference(const std::shared_ptr<RefHandle>& handle) {
  forked_.push_back(handle);
  return static_cast<uint32_t>(forked_.size() - 1);
}

Buffer Decoder::takeBuffer() {
  if (nextBuffer_ == buffers_.size()) raise(dataLoss("a message has fewer buffers than its values say"));
  return std::move(buffers_[nextBuffer_++]);
}

std::shared_ptr<RefHandle> Decoder::reference() {
  auto index = reader_.number<uint32_t>();
  check();
  if (index >= handles_.size()) raise(dataLoss("a message has fewer references than its values say"));
  return handles_[index];
}

void Decoder::finish() const {
  throwIfError(reader_.finished("a message's values"));
  if (nextBuffer_ != buffers_.size()) raise(dataLoss("a message has more buffers than its values say"));
}

}  // namespace treadle::rpc

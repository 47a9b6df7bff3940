#include "treadle/core/rpc/coder.h"

#include "treadle/core/rpc/messages.h"

namespace treadle::rpc {

void Encoder::checkThatItCanBeSent(const RefHandle& handle) const {
  if (handle.references().get() != &references_)
    raise(invalidArgument("an RRef of another worker of this process cannot be sent by this one"));
  throwIfError(references_.failureUnknownToOwner(handle));
}

uint32_t Encoder::addReference(const std::shared_ptr<RefHandle>& handle) {
  checkThatItCanBeSent(*handle);
  forked_.push_back(handle);
  return static_cast<uint32_t>(forked_.size() - 1);
}

void Encoder::addInput(uint16_t index, std::shared_ptr<RefHandle> handle) {
  checkThatItCanBeSent(*handle);
  if (inputs_.size() == kMostInputs)
    raise(invalidArgument("a call takes at most " + std::to_string(kMostInputs) + " values by reference"));
  inputs_.push_back({index, std::move(handle)});
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

void Decoder::finish() {
  throwIfError(reader_.finished("a message's values"));
  if (nextBuffer_ != buffers_.size()) raise(dataLoss("a message has more buffers than its values say"));
  if (hook_) hook_->decoded();
}

}  // namespace treadle::rpc

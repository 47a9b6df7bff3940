#include "treadle/tensor/autograd/received_messages.h"

namespace treadle::autograd {

bool ReceivedMessages::add(const ReceivedId& id) {
  MutexLock lock(mutex_);
  return alive_.emplace(id, false).second;
}

void ReceivedMessages::remove(const ReceivedId& id) {
  {
    MutexLock lock(mutex_);
    auto entry = alive_.extract(id);
    if (!entry || entry.mapped() || closed_ || !tell_) return;
    gone_[id.first].push_back(id.second);
    // Whoever was the first has posted a task that takes the others along.
    if (gone_.size() > 1 || gone_.begin()->second.size() > 1) return;
  }
  pool_.post([self = shared_from_this()] { self->tellSenders(); });
}

void ReceivedMessages::tellSenders() {
  std::map<int, std::vector<int64_t>> gone;
  {
    MutexLock lock(mutex_);
    gone.swap(gone_);
  }
  for (auto& [rank, messageIds] : gone) tell_(rank, std::move(messageIds));
}

void ReceivedMessages::spend(std::span<const ReceivedId> ids) {
  MutexLock lock(mutex_);
  for (const ReceivedId& id : ids)
    if (auto found = alive_.find(id); found != alive_.end()) found->second = true;
}

void ReceivedMessages::close() {
  MutexLock lock(mutex_);
  closed_ = true;
  gone_.clear();
}

std::vector<ReceivedId> ReceivedMessages::inUse() const {
  std::vector<ReceivedId> ids;
  MutexLock lock(mutex_);
  for (const auto& [id, spent] : alive_)
    if (!spent) ids.push_back(id);
  return ids;
}

size_t ReceivedMessages::size() const {
  MutexLock lock(mutex_);
  return alive_.size();
}

}  // namespace treadle::autograd

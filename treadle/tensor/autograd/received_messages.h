#pragma once
// The messages of a context that came to this worker, as long as any of their tensors lives. When a sender's message
// can get no gradient any more it is told, so that the graph behind it is freed there: what was received is dropped,
// and with it what was sent.
//
// Any thread: tensors go wherever their last owner lets go of them. Nothing is sent there, but a task posted.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "treadle/core/base/mutex.h"
#include "treadle/core/io/executor.h"

namespace treadle::autograd {

// Of a message that came: its sender, and its number there.
using ReceivedId = std::pair<int, int64_t>;

class ReceivedMessages : public std::enable_shared_from_this<ReceivedMessages> {
 public:
  // Tells the sender `rank` that these messages of its are gone; called in the pool, where it may send.
  using Tell = std::function<void(int rank, std::vector<int64_t> messageIds)>;

  // Nobody is told.
  ReceivedMessages() = default;
  ReceivedMessages(io::ContinueOn pool, Tell tell) : pool_(std::move(pool)), tell_(std::move(tell)) {}

  // False: that message came before, and lives.
  bool add(const ReceivedId& id);
  // Its last tensor is gone.
  void remove(const ReceivedId& id);

  // That message came and was not taken.
  void refuse(const ReceivedId& id) {
    if (add(id)) remove(id);
  }

  // A pass went through these: their senders know, and are not told.
  void spend(std::span<const ReceivedId> ids);
  // The context has ended: nobody is told any more.
  void close();

  size_t size() const;
  // Those that a pass may still go through.
  std::vector<ReceivedId> inUse() const;

 private:
  void tellSenders();

  const io::ContinueOn pool_;
  const Tell tell_;
  mutable Mutex mutex_;
  std::map<ReceivedId, bool> alive_ TREADLE_GUARDED_BY(mutex_);  // and whether its sender need not be told
  std::map<int, std::vector<int64_t>> gone_ TREADLE_GUARDED_BY(mutex_);
  bool closed_ TREADLE_GUARDED_BY(mutex_) = false;
};

}  // namespace treadle::autograd

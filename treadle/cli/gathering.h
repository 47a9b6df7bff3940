#pragma once
// The job of a command that rank 0 leads: it asks, the others answer until it has heard all that it wants to know. One
// thread; the functions that are called run on the worker's.

#include <memory>

#include "treadle/core/worker/worker.h"

namespace treadle::cli {

class Gathering {
 public:
  // Throws what Worker::join does. `timeout`: of the join, and of calls that say nothing else.
  Gathering(const std::string& name, const Launch& launch, Functions functions, Duration timeout,
            std::optional<Channels> channels = {});

  Worker& worker() { return *worker_; }
  // On the others than rank 0: returns when that has ended well, whoever of the rest was lost. Throws when it is lost
  // itself, or when this takes longer.
  void waitForEnd(Duration limit);
  // Says farewell, and waits a moment for those of the others. Rank 0 lets the others go.
  void end();

  // What the others call on rank 0.
  static Future<void> untilDone(CallContext& call);

 private:
  using Done = std::shared_ptr<Promise<void>>;

  const Done done_ = std::make_shared<Promise<void>>();
  std::shared_ptr<Worker> worker_;
};

}  // namespace treadle::cli

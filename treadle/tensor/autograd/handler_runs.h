#pragma once
// Which handler made a node, for messages about errors. libtorch numbers the nodes of each thread, so a handler has
// made those from the number when it began to the one when it ended; a coroutine has several such ranges. Any thread.
//
// Budget: a lock and an entry of a map (about 150 bytes, and a name of more than 15 characters) when a handler within a
// context begins, another lock when it ends.

#include <cstdint>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "treadle/tensor/autograd/torch_compat.h"

namespace treadle::autograd {

// A handler, or a stretch of one, and the numbers of the nodes that it has made on its thread.
struct HandlerRun {
  uint64_t thread = 0, begin = 0;
  uint64_t end = std::numeric_limits<uint64_t>::max();  // it still runs
  std::string function;
  int callerRank = -1;
};

class HandlerRuns {
 public:
  // The last ones that have made nodes: of older nodes, no error names the handler.
  static constexpr size_t kKept = 4096;

  // Returns the number of the run, for `end`.
  uint64_t begin(HandlerRun run);
  // Forgets a run that has made no nodes.
  void end(uint64_t number, uint64_t end);
  // None for a node that no handler made, or one that is not kept.
  std::optional<HandlerRun> of(const Node& node) const;

 private:
  mutable std::mutex mutex_;
  uint64_t next_ = 0;                    // guarded by mutex_
  std::map<uint64_t, HandlerRun> runs_;  // likewise
};

// While it lives, a handler runs on this thread. Its nodes are known from the start: its answer leaves before it ends.
class RecordedRun {
 public:
  RecordedRun(HandlerRuns& runs, std::string function, int callerRank);
  ~RecordedRun();
  RecordedRun(const RecordedRun&) = delete;
  RecordedRun& operator=(const RecordedRun&) = delete;

 private:
  HandlerRuns& runs_;
  const uint64_t number_;
};

}  // namespace treadle::autograd

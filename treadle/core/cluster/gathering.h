#pragma once
// Counts who has come to a barrier, and keeps what each gave to all others: complete when every worker has come. When
// one is lost who waits waits in vain, and all begin anew. Pure logic of the keeper; its owner locks.

#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "treadle/core/cluster/cluster_messages.h"

namespace treadle::cluster {

class Gathering {
 public:
  // What to tell one worker: its number `round` is decided.
  struct Word {
    int rank;
    uint64_t round;
  };
  struct Complete {
    std::vector<Word> words;  // one for each worker
    std::vector<GatheredValue> values;
    Status failure;  // some gave a value and others came to a barrier
  };
  // How many a worker may be ahead of the others: each is a thread of it. And their bytes.
  static constexpr size_t kMostAhead = 4096, kMostAheadBytes = size_t{16} << 20;

  void add(int rank) { members_[rank]; }
  // One is lost: what the others wait for, each of which fails.
  std::vector<Word> lose(int rank);
  // One has left and is not waited for: what is complete without it.
  std::vector<Complete> leave(int rank);
  // ResourceExhausted for one that is too far ahead. What is complete now, if anything.
  Result<std::optional<Complete>> enter(int rank, uint64_t round, std::vector<std::byte> value);
  // Who has not come while others wait.
  std::vector<int> waitingFor() const;

 private:
  struct Entered {
    uint64_t round;
    std::vector<std::byte> value;
  };

  bool allCame() const;
  Complete takeFirst();

  std::map<int, std::deque<Entered>> members_;  // by rank; what is not complete
};

}  // namespace treadle::cluster

#pragma once
// The options of a ReplicaSet (replica_set.h). Functions without state.

#include "treadle/core/group/group.h"
#include "treadle/train/ddp/buffer_sync.h"
#include "treadle/train/ddp/divisor.h"

namespace treadle {

struct ReplicaSetOptions {
  int replicas = 2;  // how many, 1 to 256
  // Threads of libtorch in each replica's thread; sums of floating-point numbers may depend on it in their last bits.
  // 0: at::get_num_threads() of the thread that constructs the set, divided by `replicas`.
  int intraOpThreads = 0;
  // As in DdpOptions, a replica in place of a rank. With a DistributedDataParallel those of its options count instead.
  Divisor divisor = Divisor::kWorldSize;
  Buffers buffers = Buffers::kOnce;
};

}  // namespace treadle

namespace treadle::ddp {

// Returns `options`. ArgumentError: one is out of range, or the divisor is kActiveRanks.
const ReplicaSetOptions& checked(const ReplicaSetOptions& options);

// The number that `options.intraOpThreads` stands for.
int intraOpThreadsOf(const ReplicaSetOptions& options);

// Every member of the group calls it. ArgumentError on all of them: the numbers of replicas differ, where the divisor
// or the mean of buffers would count a replica of one rank for more than that of another.
void checkNumberOfReplicas(const ProcessGroup& group, const ReplicaSetOptions& options);

}  // namespace treadle::ddp

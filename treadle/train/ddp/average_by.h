#pragma once
// What averages the gradients of a DistributedDataParallel that has no hook: all-reduces of its group, or a service
// with the summation servers of the job.

#include <memory>

#include "treadle/train/ddp/comm_hook.h"
#include "treadle/train/ddp/parameter_list.h"

namespace treadle {

struct DdpOptions;

enum class AverageBy {
  // kService where it is faster: the ranks are on at least 3 hosts, the job has servers (Worker::servers) that no rank
  // has lost, on hosts without a rank, and the group forces no algorithm. One server of a host takes part, as two would
  // share its network. Networks count as alike, but for DdpOptions::bandwidths. Where ranks share a host and the module
  // has more than summation::kMostSumsInTeam parameters, and elsewhere, kGroup.
  kAutomatic,
  kGroup,  // all-reduces of the group
  // A summation service of the ranks and the servers of the job (core/summation/service.h). Without servers the ranks
  // sum for each other, each its share. Ranks of one host sum among themselves first
  // (SummationOptions::teamsByHost). One rank alone needs none.
  kService,
};

}  // namespace treadle

namespace treadle::ddp {

const char* nameOf(AverageBy averageBy);

// The same on all ranks.
struct AverageConditions {
  int ranks = 1, hosts = 1;
  size_t servers = 0;  // that have a host of their own
  size_t parameters = 0;
  bool forcesAlgorithm = false;
};
bool isByService(AverageBy averageBy, const AverageConditions& conditions);

// Every rank calls it, with the same arguments. It waits for all of them, and throws what SummationService::make and
// operations of the group throw. A lost server is no error: the ranks go on without it.
std::shared_ptr<CommHook> makeAverageHook(const ParameterList& list, const ProcessGroup& group,
                                          const DdpOptions& options);

}  // namespace treadle::ddp

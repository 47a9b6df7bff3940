#pragma once
// How long an operation takes by each algorithm, in closed form: what it moves (the papers that the algorithms' headers
// name) and what moving costs in this job (core/cluster/costs.h). Pure; a few dozen floating-point operations, so that
// each call of an operation can choose by them. cost.h counts the same messages, bytes and steps from the plans.

#include <algorithm>

#include "treadle/core/cluster/costs.h"
#include "treadle/core/group/messages.h"
#include "treadle/core/group/placement.h"

namespace treadle::group {

struct Amounts {
  // As in cost.h; where blocks differ in size, those of the largest. Circulant, hierarchical: messages are the mean of
  // the members.
  double messages = 0, bytes = 0, steps = 0, allMessages = 0, allBytes = 0;
  // Sent or received one after the other by one member at a time, on the longest way through the operation.
  double serialMessages = 0, serialBytes = 0;
  // Taken by a member while nothing else of its data can move.
  double idleBytes = 0;
  // The most memory that a member makes for the operation.
  double scratchBytes = 0;
  // Data that leaves one host, or comes to it, at most.
  double networkBytes = 0;
  // The parts of serialMessages and serialBytes that stay on a host. All members of a host move theirs at once, and
  // nothing moves between hosts meanwhile.
  double localMessages = 0, localBytes = 0;
};

// By an algorithm that serves, among at least 2 members. Blocks are as even as possible.
Amounts amountsOf(Algorithm algorithm, const Description& what, const Placement& placement);

// Lower bounds of an operation's time in seconds, from the call on all members to the end on the last.
struct Prediction {
  // The longest way: each step costs the latency of the slowest kind of link, each message and byte on it its time. The
  // terms are those of R. Thakur, R. Rabenseifner and W. Gropp, "Optimization of collective communication operations in
  // MPICH", 2005, with LogP's processor time per message (D. Culler et al., 1993).
  double path = 0;
  // The work of all members of the fullest host, over its cores. Latency has no part in it: others work meanwhile.
  double cores = 0;
  double network = 0;  // of the host that sends or receives most, with the steps' latency

  double seconds() const { return std::max({path, cores, network}); }
};

Prediction predict(Algorithm algorithm, const Description& what, const Placement& placement,
                   const cluster::Costs& costs);

inline double timeOf(Algorithm algorithm, const Description& what, const Placement& placement,
                     const cluster::Costs& costs) {
  return predict(algorithm, what, placement, costs).seconds();
}

}  // namespace treadle::group

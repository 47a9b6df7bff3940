#pragma once
// A call of an operation, and which algorithm does it. Pure functions of what all members agree on, so all choose the
// same one.

#include <memory>
#include <optional>

#include "treadle/core/cluster/costs.h"
#include "treadle/core/group/agreement.h"
#include "treadle/core/group/messages.h"
#include "treadle/core/group/options.h"
#include "treadle/core/group/placement.h"
#include "treadle/core/group/plan.h"

namespace treadle::group {

struct SparseData;
class Staging;

struct Call {
  Description description;
  Bytes input;
  MutableBytes output;
  std::vector<uint64_t> counts = {}, incoming = {};  // as in Shape
  std::shared_ptr<SparseData> sparse = {};           // of a sparse all-reduce, in place of all these
  std::shared_ptr<Staging> staging = {};             // of an all-reduce, in place of input and output
  std::optional<Algorithm> wanted = {};              // in place of that of the group's options
};

// Up to this many members an operation begins with a message from each to each. Above, only a sparse all-reduce whose
// rows are dealt does so: each member says how many rows it has for each other one.
inline constexpr int kMostAllToAll = 16;

Agreement::Kind agreementOf(const Description& description, int size);

// Why the algorithm cannot do the operation in a group; empty when it can.
std::string_view obstacleTo(Algorithm algorithm, const Description& what, const Placement& placement,
                            SumOrder order = SumOrder::kAny);
inline bool serves(Algorithm algorithm, const Description& what, const Placement& placement,
                   SumOrder order = SumOrder::kAny) {
  return obstacleTo(algorithm, what, placement, order).empty();
}

// What the choice depends on beside the operation. Equal on all members.
struct Surroundings {
  Placement placement;
  cluster::Costs costs = {};

  static Surroundings onOneHost(int members) { return {Placement::onOneHost(members)}; }
};

// The one that the options force, or else, of those that serve, the one that takes the least time (prediction.h), and
// the one with the lowest number of several. Forcing has no effect on a barrier and a send between two members.
// InvalidArgument: the forced one cannot do the operation; names those that can.
Result<Algorithm> choose(const GroupOptions& options, const Description& what, const Surroundings& surroundings);

// The plan of the member `self` in a group of at least 2, by the algorithm in the call's description. That of a sparse
// all-reduce is empty: it is made as the sizes become known.
Plan planOf(const Call& call, const Placement& placement, int self);

}  // namespace treadle::group

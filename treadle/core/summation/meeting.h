#pragma once
// How the machines of a summation service come together: by operations of their group, which name the machines that do
// not come before the deadline. They block the calling thread.

#include <utility>
#include <vector>

#include "treadle/core/group/group.h"
#include "treadle/core/summation/bandwidths.h"
#include "treadle/core/summation/declaration.h"
#include "treadle/core/summation/participant.h"
#include "treadle/core/summation/service.h"
#include "treadle/core/summation/services.h"

namespace treadle::summation {

// Why that cannot be.
inline Status asynchronousAndCompressed() {
  return invalidArgument("an asynchronous summation service compresses nothing");
}

class Meeting {
 public:
  Meeting(group::ProcessGroup group, TimePoint deadline) : group_(std::move(group)), deadline_(deadline) {}

  // All machines take connections from now on, and know the tensors of the first worker, which are those of all.
  // ArgumentError: tensors that cannot be summed, or differ; a server that has some.
  Declaration agree(const SummationOptions& options, const std::vector<SummationTensor>& tensorsHere) const;
  // Each is connected to those that it exchanges bytes with. `workers`: the group of them, none on a server. They alone
  // end it together, as they go on without a server that is lost in this moment.
  void connect(const Services& services, Participant& participant, const group::ProcessGroup& workers) const;

 private:
  group::ProcessGroup inTime() const { return inTime(group_); }
  group::ProcessGroup inTime(const group::ProcessGroup& group) const;
  std::vector<std::byte> ofFirst(std::vector<std::byte> bytes) const;

  const group::ProcessGroup group_;
  const TimePoint deadline_;
};

// Of the machines, as the options say.
Bandwidths bandwidthsOf(const SummationOptions& options);

}  // namespace treadle::summation

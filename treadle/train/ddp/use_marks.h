#pragma once
// Which parameters travel: all of them, or from the second averaged pass on those that some rank used in the first.
//
// Owned by a reducer, and used under its lock. The same on all ranks, because it depends on the exact channel alone.

#include <vector>

#include "treadle/train/ddp/exact_channel.h"
#include "treadle/train/ddp/parameter_list.h"

namespace treadle {

// Parameters that no rank uses keep the gradient that they have, or none.
enum class UnusedParameters {
  kPerPass,  // each pass finds out which these are; they are sent as zeros
  kStatic,  // those of the first averaged pass are not sent any more; if one gets a gradient on some rank, the averaged
            // pass throws StateError on all ranks, with its name
};

}  // namespace treadle

namespace treadle::ddp {

const char* nameOf(UnusedParameters mode);

class UseMarks {
 public:
  // `list` outlives it.
  UseMarks(const ParameterList& list, UnusedParameters mode);

  bool isSent(size_t parameter) const { return isSent_[parameter]; }
  // FailedPrecondition: the channel of a pass has a gradient of a parameter that is not sent. It is named.
  Status check(const ExactChannel& channel) const;
  // The channel is that of a pass in which no rank has failed. Returns whether fewer parameters are sent from now on.
  bool learn(const ExactChannel& channel);

 private:
  const ParameterList& list_;
  bool mustLearn_;
  std::vector<bool> isSent_;
};

}  // namespace treadle::ddp

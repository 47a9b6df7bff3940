#pragma once
// How messages to people name a member of a group. A function without state; any thread.

#include <string>

#include "treadle/core/group/group.h"

namespace treadle::ddp {

// "worker 'trainer1' (rank 1 of the group)".
inline std::string memberInWords(size_t rank, const ProcessGroup& group) {
  return "worker '" + group.members()[rank] + "' (rank " + std::to_string(rank) + " of the group)";
}

}  // namespace treadle::ddp

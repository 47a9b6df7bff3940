#pragma once
// Tries one channel between two workers of a job: both join a job of two of their own that may use this channel alone
// (and those that it needs), and send each other a buffer. So what works is known by its having worked, and what does
// not by the sentence of whoever could not. The function that `treadle doctor` calls on both; it may wait, for as long
// as the task says.

#include <string>
#include <vector>

#include "treadle/core/rpc/call.h"
#include "treadle/core/rpc/codec.h"

namespace treadle::cli {

inline constexpr size_t kProbeBytes = size_t{1} << 20;
inline constexpr const char* kChannelNames[] = {"unix", "tcp", "lanes", "shm", "cma"};

struct ProbeTask {
  std::string channel;
  int rank = 0, peer = 0;  // in the job of all
  int side = 0;            // in the job of two; 0 sends first
  uint16_t port = 0;       // where side 0 listens
  std::string key;
  double seconds = 0;  // for all of it
};
TREADLE_FIELDS(ProbeTask, channel, rank, peer, side, port, key, seconds)

struct ProbeResult {
  bool works = false;
  std::string why;          // it does not
  double microseconds = 0;  // of a buffer there and another one back, the best of a few; measured on side 0
};
TREADLE_FIELDS(ProbeResult, works, why, microseconds)

ProbeResult probe(CallContext& call, const ProbeTask& task);

// What travels, kProbeBytes of it: `seed` (0 to 3) tells one from another. Made once, never changed.
const Buffer& patternBuffer(size_t seed);
bool hasPattern(Bytes bytes, size_t seed);

}  // namespace treadle::cli

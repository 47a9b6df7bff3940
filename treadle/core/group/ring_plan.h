#pragma once
// What one member of a ring sends to its right neighbour and takes from its left one, in which order. Pure logic.
//
// All-reduce (P. Patarasuk, X. Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009):
// the data is cut into as many segments as there are members. In step s of the first n-1 member r sends segment r-s
// and adds what it takes to segment r-s-1, after which it holds the whole sum of segment r+1; in n-1 more steps the
// sums go around. Segments travel as chunks, so that a chunk of one step is on its way while others are still being
// added; "position" counts the chunks of all steps. Chunk p can be sent when chunk p - chunksPerStep has been taken.
//
// Broadcast: chunks go from the root around the ring, up to the root's left neighbour.

#include "treadle/core/group/segments.h"

namespace treadle::group {

class RingPlan {
 public:
  // What an arriving chunk does to the elements that are there.
  enum class Action { kAdd, kAddAndAverage, kReplace };

  // `self` of `size` members, size >= 2.
  RingPlan(const Description& description, int size, int self);

  uint64_t sends() const { return sends_; }        // positions to send
  uint64_t receives() const { return receives_; }  // positions to take
  // How many positions may be sent when `received` have been taken.
  uint64_t sendable(uint64_t received) const;

  Range sent(uint64_t position) const { return range(position, 0); }
  Range received(uint64_t position) const { return range(position, 1); }
  Action action(uint64_t position) const;

 private:
  Range range(uint64_t position, uint64_t stepsBehind) const;

  bool reduce_ = false, average_ = false;
  uint64_t size_, self_;
  Segments segments_;
  uint64_t sends_ = 0, receives_ = 0, ahead_ = 0;
};

}  // namespace treadle::group

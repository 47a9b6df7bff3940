#pragma once
// A large all-reduce of values that are reduced at once (data_type.h). Each member combines one segment: all others
// send it their shares of the segment, and it sends them the result. That moves as many bytes as a ring, in two steps,
// and brings the values of all members to one place. (Reduce-scatter and all-gather by direct exchange: E. Chan et al.,
// "Collective communication: theory, practice, and experience", 2007.)
//
// A segment has c chunks. A member sends another member its shares of that member's segment at positions 0 to c - 1,
// and the result of its own segment at positions c to 2c - 1, each in order. The receiver keeps shares until it has
// those of all members, and acknowledges them then; it acknowledges results at once. So a member keeps at most a window
// of shares from each other member. No window stays closed: an incomplete chunk lacks the share of some member, and
// that member has no unacknowledged share beyond it.

#include <map>
#include <vector>

#include "treadle/core/group/large_operation.h"

namespace treadle::group {

class DirectReduce final : public LargeOperation {
 public:
  explicit DirectReduce(Setup setup);

 private:
  // Chunks sent to and received from one member.
  struct Peer {
    uint64_t sharesSent = 0, resultsSent = 0, acked = 0;
    uint64_t shares = 0, results = 0, acknowledged = 0;
    uint64_t sent() const { return sharesSent + resultsSent; }
    uint64_t taken() const { return shares + results; }
  };
  // The shares of one chunk of the own segment.
  struct Shares {
    std::vector<Buffer> data;  // by rank in the group
    int count = 0;
  };

  void sendToAll() override { forOthers(&DirectReduce::sendTo); }
  void sendTo(int member) override;
  void onChunk(int member, uint64_t position, Buffer data) override;
  void onAck(int member, uint64_t positions) override;
  void onFinished() override { shares_.clear(); }
  std::string waitsFor() const override;

  uint64_t self() const { return static_cast<uint64_t>(link().self()); }
  Peer& peer(int member) { return peers_[static_cast<size_t>(member)]; }
  void keepShare(int member, uint64_t chunk, Buffer data);
  void combine(const Shares& shares, Range range);
  void acknowledge(int member);
  void forOthers(void (DirectReduce::*f)(int member));
  void done();

  const Segments segments_;
  const uint64_t window_;  // to and from each other member
  // In the turn.
  std::vector<Peer> peers_;            // by rank in the group
  std::map<uint64_t, Shares> shares_;  // by chunk
  uint64_t complete_ = 0;              // chunks of the own segment
  uint64_t left_;                      // chunks to send and to take
};

}  // namespace treadle::group

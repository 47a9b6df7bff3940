#pragma once
// How far one member has come in its plan: which chunk may be sent or taken next, what is acknowledged, whether all is
// done. Knows no data and no messages. Pure logic; one thread at a time.
//
// On each channel the chunks of one direction are numbered from 0: their positions. A chunk that has arrived is taken
// when its turn has come, and acknowledged after that, so at most a window of chunks is kept.

#include <optional>

#include "treadle/core/group/plan.h"

namespace treadle::group {

// Elements [begin, end) of a transfer.
struct Chunk {
  size_t transfer = 0;
  uint64_t index = 0;  // in the transfer
  uint64_t begin = 0, end = 0;
  uint64_t count() const { return end - begin; }
};

class Progress {
 public:
  // `plan` outlives it.
  Progress(const Plan& plan, uint64_t chunkElements);

  // The plan has got more transfers, at the end of this channel.
  void grow(size_t channel);

  // The chunk of this channel that is to be sent now; the next call yields the next one. None: not now, or no more.
  std::optional<Chunk> send(size_t channel);
  // The peer has taken so many chunks. False for what no member says.
  bool acknowledged(size_t channel, uint64_t positions);

  // The chunk that is due to arrive at this position; none when no member would send it.
  std::optional<Chunk> arrive(size_t channel, uint64_t position);
  // A chunk that has arrived and may be taken. One to be combined is taken from all channels that combine.
  std::optional<Chunk> take(size_t channel);
  // What is to be acknowledged now: not each chunk of a large window, and not the last ones.
  std::optional<uint64_t> acknowledge(size_t channel);

  // Something is missing now: the next chunk of the channel could be taken at once, or sent but for the peer's
  // acknowledgement.
  bool waitsForChunk(size_t channel) const;
  bool waitsForAck(size_t channel) const;

  bool done() const { return left_ == 0; }

  bool combines(size_t channel) const { return states_[channel].combines; }
  uint64_t sent(size_t channel) const { return states_[channel].sent.position; }
  uint64_t acknowledgedBy(size_t channel) const { return states_[channel].acked; }
  uint64_t arrived(size_t channel) const { return states_[channel].arrived.position; }
  uint64_t taken(size_t channel) const { return states_[channel].taken.position; }
  uint64_t sends(size_t channel) const { return states_[channel].sends; }        // in all
  uint64_t receives(size_t channel) const { return states_[channel].receives; }  // in all

 private:
  struct Cursor {
    size_t transfer = 0;
    uint64_t index = 0;     // in the transfer
    uint64_t position = 0;  // on the channel
  };
  struct State {
    uint64_t sends = 0, receives = 0;
    Cursor sent, arrived, taken;
    uint64_t acked = 0, acknowledged = 0;  // by the peer; to the peer
    bool combines = false;
  };

  template <class Transfers>
  std::optional<Chunk> at(const Transfers& transfers, Cursor& cursor) const;
  template <class Transfers>
  bool isDue(const Transfers& transfers, Cursor next) const;
  uint64_t chunksOf(const Range& range) const;
  template <class Transfers>
  uint64_t chunksOf(const Transfers& transfers) const;
  bool hasTaken(const Received& earlier, uint64_t index) const;
  bool mayTake(size_t channel, const Chunk& chunk) const;
  void pass(Cursor& cursor);

  const Plan& plan_;
  const uint64_t chunkElements_;
  std::vector<State> states_;  // by channel
  uint64_t left_ = 0;          // chunks to send and to take
};

}  // namespace treadle::group

#include "treadle/core/group/progress.h"

#include <algorithm>

#include "treadle/core/base/check.h"

namespace treadle::group {

Progress::Progress(const Plan& plan, uint64_t chunkElements)
    : plan_(plan), chunkElements_(std::max<uint64_t>(1, chunkElements)) {
  for (const Channel& channel : plan.channels) {
    State& state = states_.emplace_back();
    for (const Receive& receive : channel.receives) {
      if (receive.action != Action::kCombine) continue;
      TREADLE_CHECK(&receive == &channel.receives.front(), "what is combined comes first");
      state.combines = true;
    }
    grow(states_.size() - 1);
  }
}

void Progress::grow(size_t channel) {
  State& state = states_[channel];
  const uint64_t sends = chunksOf(plan_.channels[channel].sends);
  const uint64_t receives = chunksOf(plan_.channels[channel].receives);
  left_ += sends - state.sends + receives - state.receives;
  state.sends = sends;
  state.receives = receives;
}

std::optional<Chunk> Progress::send(size_t channel) {
  State& state = states_[channel];
  if (state.sent.position - state.acked >= plan_.channels[channel].window) return {};
  const std::vector<Send>& sends = plan_.channels[channel].sends;
  const std::optional<Chunk> chunk = at(sends, state.sent);
  if (!chunk || !hasTaken(sends[chunk->transfer].after, chunk->index)) return {};
  pass(state.sent);
  --left_;
  return chunk;
}

bool Progress::acknowledged(size_t channel, uint64_t positions) {
  State& state = states_[channel];
  if (positions <= state.acked || positions > state.sent.position || positions == state.sends) return false;
  state.acked = positions;
  return true;
}

std::optional<Chunk> Progress::arrive(size_t channel, uint64_t position) {
  State& state = states_[channel];
  if (position != state.arrived.position) return {};
  if (state.arrived.position - state.acknowledged >= plan_.channels[channel].window) return {};
  const std::optional<Chunk> chunk = at(plan_.channels[channel].receives, state.arrived);
  if (chunk) pass(state.arrived);
  return chunk;
}

std::optional<Chunk> Progress::take(size_t channel) {
  State& state = states_[channel];
  if (state.taken.position == state.arrived.position) return {};
  const std::vector<Receive>& receives = plan_.channels[channel].receives;
  const std::optional<Chunk> chunk = at(receives, state.taken);
  if (!mayTake(channel, *chunk)) return {};
  if (receives[chunk->transfer].action != Action::kCombine) {
    pass(state.taken);
    --left_;
    return chunk;
  }
  for (State& other : states_) {
    if (!other.combines) continue;
    pass(other.taken);
    --left_;
  }
  return chunk;
}

// What is combined comes first on each channel, so all channels that combine are at the same chunk.
bool Progress::mayTake(size_t channel, const Chunk& chunk) const {
  const Receive& receive = plan_.channels[channel].receives[chunk.transfer];
  if (!hasTaken(receive.after, chunk.index)) return false;
  if (receive.action != Action::kCombine) return true;
  return std::all_of(states_.begin(), states_.end(), [](const State& state) {
    return !state.combines || state.arrived.position > state.taken.position;
  });
}

std::optional<uint64_t> Progress::acknowledge(size_t channel) {
  State& state = states_[channel];
  const uint64_t taken = state.taken.position;
  const uint64_t half = std::max<uint64_t>(1, plan_.channels[channel].window / 2);
  if (taken - state.acknowledged < half || taken == state.receives) return {};
  state.acknowledged = taken;
  return taken;
}

bool Progress::waitsForChunk(size_t channel) const {
  return isDue(plan_.channels[channel].receives, states_[channel].arrived);
}

bool Progress::waitsForAck(size_t channel) const { return isDue(plan_.channels[channel].sends, states_[channel].sent); }

template <class Transfers>
bool Progress::isDue(const Transfers& transfers, Cursor next) const {
  const std::optional<Chunk> chunk = at(transfers, next);
  return chunk && hasTaken(transfers[chunk->transfer].after, chunk->index);
}

bool Progress::hasTaken(const Received& earlier, uint64_t index) const {
  if (earlier.channel == Received::kNone) return true;
  const Cursor& taken = states_[earlier.channel].taken;
  if (taken.transfer != earlier.transfer) return taken.transfer > earlier.transfer;
  const Range& whole = plan_.channels[earlier.channel].receives[earlier.transfer].range();
  return earlier.all ? taken.index == chunksOf(whole) : taken.index > index;
}

// Steps over what has been passed, and over transfers of nothing.
template <class Transfers>
std::optional<Chunk> Progress::at(const Transfers& transfers, Cursor& cursor) const {
  for (; cursor.transfer < transfers.size(); ++cursor.transfer, cursor.index = 0) {
    const uint64_t count = transfers[cursor.transfer].range().count();
    const uint64_t begin = cursor.index * chunkElements_;
    if (begin < count)
      return Chunk{cursor.transfer, cursor.index, begin, begin + std::min(chunkElements_, count - begin)};
  }
  return {};
}

void Progress::pass(Cursor& cursor) {
  ++cursor.index;
  ++cursor.position;
}

uint64_t Progress::chunksOf(const Range& range) const {
  return range.count() / chunkElements_ + (range.count() % chunkElements_ > 0 ? 1 : 0);
}

template <class Transfers>
uint64_t Progress::chunksOf(const Transfers& transfers) const {
  uint64_t chunks = 0;
  for (const auto& transfer : transfers) chunks += chunksOf(transfer.range());
  return chunks;
}

}  // namespace treadle::group

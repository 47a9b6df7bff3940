#include "treadle/train/ddp/distributed_sampler.h"

#include <torch/serialize/archive.h>

#include <algorithm>
#include <utility>

#include "treadle/core/base/error.h"

namespace treadle {

DistributedSampler::DistributedSampler(size_t samples, int rank, int ranks, SamplerOptions options)
    : samples_(samples), rank_(static_cast<uint64_t>(rank)), ranks_(static_cast<uint64_t>(ranks)), options_(options) {
  if (rank < 0 || rank >= ranks)
    raise(invalidArgument("a sampler for rank " + std::to_string(rank) + " of " + std::to_string(ranks) + " ranks"));
}

void DistributedSampler::reset(std::optional<size_t> samples) {
  if (samples) samples_ = *samples;
  if (!std::exchange(begun_, true)) return;
  ++epoch_;
  first_ = own_ = 0;
}

std::optional<std::vector<size_t>> DistributedSampler::next(size_t batchSize) {
  if (batchSize == 0) raise(invalidArgument("a batch has at least one sample"));
  begun_ = true;
  const ddp::Permutation order(samples_, options_.seed ^ (epoch_ << 32 | epoch_ >> 32));
  std::vector<size_t> batch;
  for (uint64_t count = std::min<uint64_t>(batchSize, size() - own_); count > 0; --count, ++own_)
    batch.push_back(sampleAt(first_ + own_ * ranks_ + rank_, order));
  if (batch.empty()) return std::nullopt;
  return batch;
}

// Places beyond the last sample begin again with the first.
size_t DistributedSampler::sampleAt(uint64_t place, const ddp::Permutation& order) const {
  place %= samples_;
  return options_.shuffle ? order[place] : place;
}

uint64_t DistributedSampler::end() const {
  const uint64_t left = samples_ - std::min(samples_, first_), odd = left % ranks_;
  switch (options_.remainder) {
    case Remainder::kPad: return first_ + left + (odd > 0 ? ranks_ - odd : 0);
    case Remainder::kDrop: return first_ + left - odd;
    case Remainder::kUneven: break;
  }
  return first_ + left;
}

size_t DistributedSampler::size() const {
  const uint64_t begin = first_ + rank_;
  return end() <= begin ? 0 : (end() - begin + ranks_ - 1) / ranks_;
}

DistributedSampler::State DistributedSampler::state() const {
  return {options_.seed, epoch_, std::min(samples_, first_ + own_ * ranks_)};
}

void DistributedSampler::load(const State& state) {
  if (state.taken > samples_)
    raise(invalidArgument("a sampler of " + std::to_string(samples_) +
                          " samples was given the state of one that had taken " + std::to_string(state.taken)));
  options_.seed = state.seed;
  epoch_ = state.epoch;
  first_ = state.taken;
  own_ = 0;
  begun_ = false;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  const State now = state();
  for (const auto& [name, value] : {std::pair("seed", now.seed), {"epoch", now.epoch}, {"taken", now.taken}})
    archive.write(name, c10::IValue(static_cast<int64_t>(value)));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  const auto number = [&](const char* name) {
    c10::IValue value;
    if (!archive.try_read(name, value) || !value.isInt())
      raise(invalidArgument(std::string("the archive has no number '") + name + "', which a sampler saves"));
    return static_cast<uint64_t>(value.toInt());
  };
  load(State{number("seed"), number("epoch"), number("taken")});
}

}  // namespace treadle

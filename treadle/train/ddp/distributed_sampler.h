#pragma once
// Which samples of a dataset each rank trains on: in every epoch each sample goes to one rank, in an order that is the
// same on all ranks and computed from a seed, so nothing is sent. For torch::data::make_data_loader, whose iteration
// resets it. Used by one thread at a time.

#include <torch/data/samplers/base.h>

#include <optional>
#include <vector>

#include "treadle/core/group/group.h"
#include "treadle/train/ddp/permutation.h"

namespace treadle {

// If the number of samples is no multiple of the number of ranks:
enum class Remainder {
  kPad,     // some samples are used twice, so that all ranks have as many
  kDrop,    // some are left out, other ones in each epoch if the order is shuffled
  kUneven,  // some ranks have one more: passes that are averaged would wait for the others
};

// Must be the same on all ranks.
struct SamplerOptions {
  bool shuffle = true;
  uint64_t seed = 0;
  Remainder remainder = Remainder::kPad;
};

class DistributedSampler final : public torch::data::samplers::Sampler<> {
 public:
  // How far all ranks have come, if each has taken as many samples as this one: it may be loaded by any number of
  // ranks.
  struct State {
    uint64_t seed = 0, epoch = 0;
    uint64_t taken = 0;  // in the epoch, by all ranks
    bool operator==(const State&) const = default;
  };

  // `samples`: how many the dataset has. ArgumentError: no ranks, no such rank.
  DistributedSampler(size_t samples, int rank, int ranks, SamplerOptions options = {});
  DistributedSampler(size_t samples, const ProcessGroup& group, SamplerOptions options = {})
      : DistributedSampler(samples, group.rank(), group.size(), options) {}

  // The next epoch begins, with another order. The first call begins the first epoch, and one after `load` goes on
  // where the state was saved. `samples`: that the dataset has from now on.
  void reset(std::optional<size_t> samples = std::nullopt) override;
  // At most so many samples; none at the end of the epoch. ArgumentError: 0.
  std::optional<std::vector<size_t>> next(size_t batchSize) override;

  // How many samples this rank has in the whole of this epoch, or in what was left of it when a state was loaded.
  size_t size() const;

  State state() const;
  // ArgumentError: more samples were taken than there are; the state of another dataset, as a rule.
  void load(const State& state);
  void save(torch::serialize::OutputArchive& archive) const override;
  // ArgumentError: as above, or the archive has no state of a sampler.
  void load(torch::serialize::InputArchive& archive) override;

 private:
  uint64_t end() const;
  size_t sampleAt(uint64_t place, const ddp::Permutation& order) const;

  uint64_t samples_;
  const uint64_t rank_, ranks_;
  SamplerOptions options_;
  // Places in the order of the epoch: [first_, end()) are dealt to the ranks in turn. This one has taken `own_` of
  // them.
  uint64_t epoch_ = 0, first_ = 0, own_ = 0;
  bool begun_ = false;
};

}  // namespace treadle

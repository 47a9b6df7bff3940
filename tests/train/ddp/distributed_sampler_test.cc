// Every sample goes to the ranks as often as promised, whatever their number, and a state may be loaded by another
// number.

#include "treadle/train/ddp/distributed_sampler.h"

#include <gtest/gtest.h>
#include <torch/data/dataloader.h>
#include <torch/data/datasets/map.h>
#include <torch/data/datasets/tensor.h>
#include <torch/data/transforms/stack.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "treadle/core/base/error.h"

namespace treadle::distributed_sampler_test {
namespace {

using Samples = std::vector<size_t>;

Samples rest(DistributedSampler& sampler, size_t batch = 3) {
  Samples all;
  while (const auto some = sampler.next(batch)) all.insert(all.end(), some->begin(), some->end());
  return all;
}

// How often each sample is taken by all ranks in one epoch.
std::map<size_t, int> counts(size_t samples, int ranks, const SamplerOptions& options) {
  std::map<size_t, int> counts;
  for (int rank = 0; rank < ranks; ++rank) {
    DistributedSampler sampler(samples, rank, ranks, options);
    const Samples own = rest(sampler);
    EXPECT_EQ(own.size(), sampler.size());
    for (size_t sample : own) ++counts[sample];
  }
  return counts;
}

TEST(DistributedSampler, GivesEachSampleAsOftenAsPromised) {
  for (size_t samples = 0; samples <= 50; ++samples)
    for (int ranks = 1; ranks <= 7; ++ranks)
      for (bool shuffle : {false, true}) {
        SCOPED_TRACE(std::to_string(samples) + " samples, " + std::to_string(ranks) + " ranks");
        const auto parts = static_cast<size_t>(ranks);
        const auto uneven = counts(samples, ranks, {shuffle, 7, Remainder::kUneven});
        EXPECT_EQ(uneven.size(), samples);
        for (const auto& [sample, times] : uneven) EXPECT_TRUE(sample < samples && times == 1);
        const auto dropped = counts(samples, ranks, {shuffle, 7, Remainder::kDrop});
        EXPECT_EQ(dropped.size(), samples / parts * parts);
        for (const auto& [sample, times] : dropped) EXPECT_TRUE(sample < samples && times == 1);
        size_t padded = 0;
        const auto all = counts(samples, ranks, {shuffle, 7, Remainder::kPad});
        EXPECT_EQ(all.size(), samples);
        for (const auto& [sample, times] : all) {
          EXPECT_TRUE(sample < samples);
          padded += static_cast<size_t>(times);
        }
        EXPECT_EQ(padded, samples == 0 ? 0 : (samples + parts - 1) / parts * parts);
        for (const auto& [sample, times] : all) EXPECT_LE(times, 1 + static_cast<int>((parts - 1) / samples) + 1);
      }
}

TEST(DistributedSampler, GivesAllRanksAsManyUnlessItIsTold) {
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(DistributedSampler(10, rank, 4).size(), 3U);
    EXPECT_EQ(DistributedSampler(10, rank, 4, {.remainder = Remainder::kDrop}).size(), 2U);
    EXPECT_EQ(DistributedSampler(10, rank, 4, {.remainder = Remainder::kUneven}).size(), rank < 2 ? 3U : 2U);
  }
}

TEST(DistributedSampler, HasAnotherOrderInEachEpoch) {
  DistributedSampler sampler(100, 0, 1, {.seed = 3}), same(100, 0, 1, {.seed = 3}), other(100, 0, 1, {.seed = 4});
  std::set<Samples> orders;
  for (int epoch = 0; epoch < 5; ++epoch) {
    sampler.reset();
    same.reset();
    const Samples order = rest(sampler);
    EXPECT_EQ(order, rest(same, 7)) << "the same seed, the same order";
    orders.insert(order);
  }
  orders.insert(rest(other));
  EXPECT_EQ(orders.size(), 6U);
  DistributedSampler plain(5, 1, 2, {.shuffle = false});
  EXPECT_EQ(rest(plain), (Samples{1, 3, 0}));
}

// Any sample comes to any place equally often: over 6,000 orders, within five standard deviations.
TEST(DistributedSampler, ShufflesEvenly) {
  constexpr size_t kSamples = 6;
  constexpr int kOrders = 6000;
  std::map<std::pair<size_t, size_t>, int> times;
  for (uint64_t seed = 0; seed < kOrders; ++seed) {
    DistributedSampler sampler(kSamples, 0, 1, {.seed = seed});
    const Samples order = rest(sampler);
    for (size_t place = 0; place < kSamples; ++place) ++times[{place, order[place]}];
  }
  EXPECT_EQ(times.size(), kSamples * kSamples);
  for (const auto& [what, count] : times) EXPECT_NEAR(count, 1000, 5 * 29);
}

// Four ranks stop in the middle of an epoch, and three go on.
TEST(DistributedSampler, GoesOnWithAnotherNumberOfRanks) {
  for (size_t steps = 0; steps <= 13; ++steps) {
    std::map<size_t, int> counts;
    DistributedSampler::State state;
    for (int rank = 0; rank < 4; ++rank) {
      DistributedSampler sampler(50, rank, 4, {.seed = 9, .remainder = Remainder::kUneven});
      sampler.reset();
      sampler.reset();  // the second epoch
      for (size_t step = 0; step < steps; ++step)
        if (const auto sample = sampler.next(1)) ++counts[sample->front()];
      if (rank == 0) state = sampler.state();
    }
    EXPECT_EQ(state.epoch, 1U);
    Samples nextEpoch;
    for (int rank = 0; rank < 3; ++rank) {
      DistributedSampler sampler(50, rank, 3, {.remainder = Remainder::kUneven});
      sampler.load(state);
      EXPECT_EQ(sampler.state(), state);
      sampler.reset();  // as the data loader does
      for (size_t sample : rest(sampler)) ++counts[sample];
      sampler.reset();
      EXPECT_EQ(sampler.state().epoch, 2U);
      for (size_t sample : rest(sampler)) nextEpoch.push_back(sample);
    }
    EXPECT_EQ(counts.size(), 50U) << "after " << steps;
    for (const auto& [sample, times] : counts) EXPECT_EQ(times, 1) << sample << " after " << steps;
    EXPECT_EQ(std::set<size_t>(nextEpoch.begin(), nextEpoch.end()).size(), 50U);
  }
}

TEST(DistributedSampler, IsSavedInAnArchive) {
  DistributedSampler sampler(20, 1, 2, {.seed = 5}), other(20, 1, 2);
  sampler.next(4);
  torch::serialize::OutputArchive out;
  sampler.save(out);
  std::stringstream stream;
  out.save_to(stream);
  torch::serialize::InputArchive in;
  in.load_from(stream);
  other.load(in);
  EXPECT_EQ(other.state(), sampler.state());
  EXPECT_EQ(rest(other), rest(sampler));
  torch::serialize::OutputArchive nothing;
  std::stringstream empty;
  nothing.save_to(empty);
  torch::serialize::InputArchive none;
  none.load_from(empty);
  EXPECT_THROW(other.load(none), ArgumentError);
}

TEST(DistributedSampler, FeedsADataLoader) {
  auto dataset = torch::data::datasets::TensorDataset({torch::arange(10)})
                     .map(torch::data::transforms::Stack<torch::data::TensorExample>());
  auto loader = torch::data::make_data_loader(std::move(dataset), DistributedSampler(10, 1, 2, {.shuffle = false}),
                                              torch::data::DataLoaderOptions(2));
  for (int epoch = 0; epoch < 2; ++epoch) {
    std::vector<int64_t> seen;
    for (auto& batch : *loader)
      for (int64_t i = 0; i < batch.data.size(0); ++i) seen.push_back(batch.data[i].item<int64_t>());
    EXPECT_EQ(seen, (std::vector<int64_t>{1, 3, 5, 7, 9}));
  }
}

TEST(DistributedSampler, RefusesWhatCannotBe) {
  EXPECT_THROW(DistributedSampler(10, 2, 2), ArgumentError);
  EXPECT_THROW(DistributedSampler(10, -1, 2), ArgumentError);
  EXPECT_THROW(DistributedSampler(10, 0, 0), ArgumentError);
  DistributedSampler sampler(10, 0, 2);
  EXPECT_THROW(sampler.next(0), ArgumentError);
  EXPECT_THROW(sampler.load(DistributedSampler::State{0, 0, 11}), ArgumentError);
}

}  // namespace
}  // namespace treadle::distributed_sampler_test

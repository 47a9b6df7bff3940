// Replicas that are made of something else on a rank, or that have other values there, are refused on all ranks, which
// name the first difference and the ranks.

#include <cmath>
#include <map>
#include <regex>

#include "tests/support/expect_error.h"
#include "tests/support/seeds.h"
#include "tests/train/ddp/net.h"
#include "treadle/train/ddp/first_difference.h"
#include "treadle/train/ddp/hash128.h"

namespace treadle::test::replica_check_test {
namespace {

using namespace ddp_test;

TEST(Hash128, HasThePublishedValuesOfMurmurHash3) {
  auto of = [](std::string_view text) { return ddp::inHex(ddp::hashed({}, std::as_bytes(std::span(text)))); };
  EXPECT_EQ(of(""), std::string(32, '0'));
  EXPECT_EQ(of("hello"), "cbd8a7b341bd9b025b1e906a48ae1d19");
  EXPECT_EQ(of("The quick brown fox jumps over the lazy dog"), "e34bbc7bbc071b6c7a433ca9c49a9347");
}

TEST(Hash128, OfAChainDependsOnWhereItsPartsEnd) {
  auto chained = [](std::string_view one, std::string_view other) {
    return ddp::hashed(ddp::hashed({}, std::as_bytes(std::span(one))), std::as_bytes(std::span(other)));
  };
  EXPECT_EQ(chained("ab", "c"), chained("ab", "c"));
  EXPECT_NE(chained("ab", "c"), chained("a", "bc"));
  EXPECT_NE(chained("ab", "c"), chained("abc", ""));
}

using Lines = std::vector<std::string>;
constexpr size_t kRanks = 3;

// A random list on all ranks, in which some ranks have changed, removed or added lines.
std::vector<Lines> randomLists(Random& random) {
  Lines common;
  for (uint64_t left = pick(random, 20); left > 0; --left) common.push_back("line " + std::to_string(pick(random, 9)));
  std::vector<Lines> lists(kRanks, common);
  for (uint64_t left = pick(random, 3); left > 0; --left) {
    Lines& list = lists[pick(random, kRanks)];
    const std::string other = "changed " + std::to_string(pick(random, 3));
    const auto place = list.begin() + static_cast<ptrdiff_t>(pick(random, list.size() + 1));
    if (place == list.end() || pick(random, 3) == 0) {
      list.insert(place, other);
    } else {
      pick(random, 2) == 0 ? void(*place = other) : void(list.erase(place));
    }
  }
  return lists;
}

// The ranks by the line that they have, of the first line that is not the same on all. None: there is no such line.
std::map<std::string, std::vector<size_t>> ranksByLine(const std::vector<Lines>& lists) {
  for (size_t number = 0;; ++number) {
    std::map<std::string, std::vector<size_t>> ranks;
    bool beyondAll = true;
    for (size_t rank = 0; rank < kRanks; ++rank) {
      const bool isThere = number < lists[rank].size();
      beyondAll = beyondAll && !isThere;
      ranks[isThere ? lists[rank][number] : "nothing more"].push_back(rank);
    }
    if (beyondAll) return {};
    if (ranks.size() > 1) return ranks;
  }
}

TEST(FirstDifference, IsFoundInRandomLists) {
  TensorJob job(ranks(kRanks));
  std::vector<ProcessGroup> groups(kRanks);
  for (size_t rank = 0; rank < kRanks; ++rank) groups[rank] = ProcessGroup::make(job[rank], job.names());
  forSeeds(60, [&](Random& random) {
    const std::vector<Lines> lists = randomLists(random);
    std::vector<std::optional<std::string>> found(kRanks);
    job.onAll([&](Worker& worker) {
      const auto rank = static_cast<size_t>(worker.self().rank);
      found[rank] = ddp::firstDifference(groups[rank], lists[rank]);
    });
    const auto expected = ranksByLine(lists);
    for (size_t rank = 0; rank < kRanks; ++rank) {
      ASSERT_EQ(found[rank].has_value(), !expected.empty());
      EXPECT_EQ(found[rank], found[0]);
    }
    for (const auto& [line, those] : expected) {
      std::string text = those.size() == 1 ? "rank " : "ranks ";
      for (size_t rank : those) text += (rank == those.front() ? "" : ", ") + std::to_string(rank);
      EXPECT_TRUE(contains(*found[0], text + (those.size() == 1 ? " has " : " have ") + line));
    }
  });
}

// A name may be longer than what is sent of it, and a peer may have named a tensor anything.
TEST(FirstDifference, CutsLongLinesAndShowsNoControlCharacters) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const Lines lines = {rank == 0 ? std::string(1000, 'x') : "a\n\x1b[31mb"};
    const auto found = ddp::firstDifference(ProcessGroup::make(worker, job.names()), lines);
    ASSERT_TRUE(found.has_value());
    EXPECT_TRUE(contains(*found, "rank 0 has " + std::string(480, 'x') + "... with the hash "));
    EXPECT_TRUE(contains(*found, "; rank 1 has a??[31mb"));
  });
}

// They differ in their last bytes only.
TEST(FirstDifference, ShowsOtherHashesForLinesWithTheSameBeginning) {
  TensorJob job(ranks(2));
  const std::string begin = std::string(480, 'x') + "... with the hash ";
  job.onAll([&](Worker& worker) {
    const Lines lines = {std::string(1000, 'x') + std::to_string(worker.self().rank)};
    const auto found = ddp::firstDifference(ProcessGroup::make(worker, job.names()), lines);
    ASSERT_TRUE(found.has_value());
    std::vector<std::string> hashes;
    for (size_t at = found->find(begin); at != std::string::npos; at = found->find(begin, at + 1))
      hashes.push_back(found->substr(at + begin.size(), 32));
    ASSERT_EQ(hashes.size(), 2U);
    EXPECT_NE(hashes[0], hashes[1]);
  });
}

// Parts of a replica.
struct Spec {
  std::string name = "weight", bufferName = "mean", sharedName = "output";
  std::vector<int64_t> sizes = {4, 2}, bufferSizes = {2};
  at::ScalarType dtype = at::kDouble, bufferDtype = at::kDouble;
  bool isTransposed = false, isFrozen = false, isShared = true, hasBias = true;
  DdpOptions options = {};
};

struct Made : torch::nn::Module {
  explicit Made(const Spec& spec) {
    const at::Tensor memory = at::zeros(spec.sizes, spec.dtype);
    const at::Tensor weight = register_parameter(spec.name, spec.isTransposed ? memory.t().contiguous().t() : memory,
                                                 /*requires_grad=*/!spec.isFrozen);
    register_parameter(spec.sharedName, spec.isShared ? weight : at::zeros(spec.sizes, spec.dtype), !spec.isFrozen);
    if (spec.hasBias) register_parameter("bias", at::zeros({3}, at::kDouble));
    register_buffer(spec.bufferName, at::zeros(spec.bufferSizes, spec.bufferDtype));
  }
};

struct Change {
  const char* name;
  std::function<void(Spec&)> make;
  std::string before, after;  // in the message
};

class ReplicaCheck : public ::testing::TestWithParam<Change> {};

TEST_P(ReplicaCheck, RefusesAReplicaThatIsMadeOfSomethingElse) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    Spec spec;
    if (worker.self().rank == 1) GetParam().make(spec);
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    auto construct = [&] { DistributedDataParallel<Made>(std::make_shared<Made>(spec), group, spec.options); };
    // Measured, so it depends on what else the machine does.
    static const std::regex needed(R"(\d+ bytes, as the network needs them)");
    const std::string message =
        std::regex_replace(messageOf<ArgumentError>(construct), needed, "N bytes, as the network needs them");
    EXPECT_TRUE(contains(message, "ranks 0, 2 have " + GetParam().before));
    EXPECT_TRUE(contains(message, "rank 1 has " + GetParam().after));
    DistributedDataParallel<Made>(std::make_shared<Made>(Spec()), group);  // the group can go on
  });
}

const std::string kWeight = "parameter 'weight' (also 'output'): Double [4, 2] with strides [2, 1] on cpu, trained";

INSTANTIATE_TEST_SUITE_P(
    Changes, ReplicaCheck,
    ::testing::Values(
        Change{"name", [](Spec& spec) { spec.name = "weights"; }, kWeight, "parameter 'weights' (also 'output')"},
        Change{"shape", [](Spec& spec) { spec.sizes = {2, 4}; }, kWeight,
               "parameter 'weight' (also 'output'): Double [2, 4]"},
        Change{"dtype", [](Spec& spec) { spec.dtype = at::kLong, spec.isFrozen = true; }, kWeight,
               "parameter 'weight' (also 'output'): Long [4, 2]"},
        Change{"strides", [](Spec& spec) { spec.isTransposed = true; }, kWeight,
               "parameter 'weight' (also 'output'): Double [4, 2] with strides [1, 4]"},
        Change{"frozen", [](Spec& spec) { spec.isFrozen = true; }, kWeight,
               "parameter 'weight' (also 'output'): Double [4, 2] with strides [2, 1] on cpu, not trained"},
        Change{"notShared", [](Spec& spec) { spec.isShared = false; }, kWeight, "parameter 'weight': Double [4, 2]"},
        Change{"noBias", [](Spec& spec) { spec.hasBias = false; }, "parameter 'bias'", "buffer 'mean'"},
        Change{"bufferName", [](Spec& spec) { spec.bufferName = "var"; }, "buffer 'mean'", "buffer 'var'"},
        Change{"bufferShape", [](Spec& spec) { spec.bufferSizes = {1, 2}; }, "buffer 'mean': Double [2]",
               "buffer 'mean': Double [1, 2]"},
        Change{"bufferDtype", [](Spec& spec) { spec.bufferDtype = at::kFloat; }, "buffer 'mean': Double [2]",
               "buffer 'mean': Float [2]"},
        Change{"buckets", [](Spec& spec) { spec.options.buckets.firstBytes = 7; },
               "DdpOptions::buckets of 1048576, then N bytes, as the network needs them",
               "DdpOptions::buckets of 7, then N bytes, as the network needs them"},
        Change{"bucketsAsTheNetworkNeedsThem", [](Spec& spec) { spec.options.buckets.bytes = ddp::kLargestBucket; },
               "DdpOptions::buckets of 1048576, then N bytes, as the network needs them",
               "DdpOptions::buckets of 1048576, then 26214400 bytes"},
        Change{"start", [](Spec& spec) { spec.options.start = StartCheck::kTrust; }, "DdpOptions::start kBroadcast",
               "DdpOptions::start kTrust"},
        Change{"buffers", [](Spec& spec) { spec.options.buffers = Buffers::kAverage; }, "DdpOptions::buffers kOnce",
               "DdpOptions::buffers kAverage"},
        Change{"divisor", [](Spec& spec) { spec.options.divisor = Divisor::kSum; }, "DdpOptions::divisor kWorldSize",
               "DdpOptions::divisor kSum"},
        Change{"unusedParameters", [](Spec& spec) { spec.options.unusedParameters = UnusedParameters::kStatic; },
               "DdpOptions::unusedParameters kPerPass", "DdpOptions::unusedParameters kStatic"},
        Change{"bucketOrder", [](Spec& spec) { spec.options.bucketOrder = {"weight", "bias"}; }, kWeight,
               "DdpOptions::bucketOrder with 'weight' next"}),
    [](const auto& info) { return info.param.name; });

// libtorch gives a dimension of size 1 any stride, as a view of a larger tensor.
struct Row : torch::nn::Module {
  explicit Row(int64_t stride) {
    register_parameter("row", at::zeros({2}, at::kDouble).as_strided({1, 2}, {stride, 1}));
  }
};

TEST(ReplicaStructure, HasNoStridesOfDimensionsOfSizeOne) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto replica = std::make_shared<Row>(2 + worker.self().rank);
    DistributedDataParallel<Row>(replica, ProcessGroup::make(worker, job.names()), {.start = StartCheck::kTrust});
  });
}

// It would be an operation between those of the pass, on this rank alone.
TEST(ReplicaValues, AreNotVerifiedWithinAPass) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    net->bias.register_hook([&](const at::Tensor&) {
      if (rank != 0) return;
      EXPECT_TRUE(contains(messageOf<StateError>([&] { ddp.verifyReplicas(); }), "verifyReplicas is called between"));
    });
    ddp.forward(inputOf(rank, 0), false).square().mean().backward();
    ddp.verifyReplicas();
  });
}

// The least change of a value that there is.
void changeABit(const at::Tensor& tensor, int64_t place) {
  double& value = tensor.data_ptr<double>()[place];
  value = std::nextafter(value, INFINITY);
}

// On rank 2 only.
TEST(ReplicaValues, AreVerifiedInPlaceOfABroadcast) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    const DdpOptions options{.start = StartCheck::kVerifyValues};
    for (const std::string name : {"parameter 'bias'", "buffer 'offset'"}) {
      Net net(0);
      if (rank == 2) changeABit(name == "buffer 'offset'" ? net->offset : net->bias, 1);
      const std::string message = messageOf<StateError>([&] { DistributedDataParallel<Net>(net, group, options); });
      EXPECT_TRUE(contains(message, "ranks 0, 1 have " + name + " with the hash "));
      EXPECT_TRUE(contains(message, "rank 2 has " + name + " with the hash "));
    }
    DistributedDataParallel<Net>(Net(0), group, options);
  });
}

TEST(ReplicaValues, AreLeftAloneWhereTheyAreTrusted) {
  TensorJob job(ranks(2));
  job.onAll([&](Worker& worker) {
    const auto seed = static_cast<uint64_t>(worker.self().rank);
    Net net(seed), same(seed);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), {.start = StartCheck::kTrust});
    EXPECT_TRUE(at::equal(net->first, same->first));
    EXPECT_TRUE(at::equal(net->offset, same->offset));
  });
}

// A parameter drifts on rank 1, as after a step without averages.
TEST(ReplicaValues, CanBeVerifiedAtAnyTime) {
  TensorJob job(ranks(3));
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    Net net(static_cast<uint64_t>(rank));
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), smallBuckets());
    auto pass = [&](int step) { ddp.forward(inputOf(rank, step), false).square().mean().backward(); };
    pass(0);
    ddp.verifyReplicas();
    const at::Tensor before = net->skipped.detach().clone();
    if (rank == 1) changeABit(net->skipped, 3);
    const std::string message = messageOf<StateError>([&] { ddp.verifyReplicas(); });
    EXPECT_TRUE(contains(message, "ranks 0, 2 have parameter 'skipped'"));
    EXPECT_TRUE(contains(message, "rank 1 has parameter 'skipped'"));
    net->skipped.variable_data().copy_(before);
    net->offset.fill_(rank);  // buffers are the ranks' own
    ddp.verifyReplicas();
    pass(1);
    ddp.verifyReplicas();
  });
}

}  // namespace
}  // namespace treadle::test::replica_check_test

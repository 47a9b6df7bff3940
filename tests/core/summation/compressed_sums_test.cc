// Compressed tensors among machines in any order of events: all workers have the same bits, and each number counts
// once, with and without lost servers; and what packing loses arrives later.

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <set>
#include <string>

#include "tests/core/summation/simulated_service.h"

namespace treadle::summation::compressed_sums_test {
namespace {

using group::DataType;
using test::pick;
using test::Random;
using test::SimulatedService;

const std::vector<Compression> kForms = {Compression::float16(), Compression::bfloat16(), Compression::oneBit(),
                                         Compression::topK(0.1)};

Declaration::Tensor tensorOf(const Compression& compression, uint64_t elements) {
  const Packing packing = Packing::of(compression, elements);
  return {DataType::kFloat32, packing.bytes(), {}, packing};
}

Declaration declarationOf(std::vector<Declaration::Tensor> tensors, size_t workers, size_t servers) {
  return valueOrThrow(Declaration::of(std::move(tensors), bestShares(Bandwidths::even(workers, servers, 1))));
}

Declaration drawnDeclaration(Random& random, size_t workers, size_t servers) {
  std::vector<Declaration::Tensor> tensors(1 + pick(random, 4));
  for (Declaration::Tensor& tensor : tensors) {
    const Compression& form = kForms[pick(random, kForms.size())];
    // Up to two pieces.
    const uint64_t most = 40'000 / kChunkBytes * Packing::of(form, 1).chunkElements;
    tensor = tensorOf(form, 1 + pick(random, most));
  }
  return declarationOf(std::move(tensors), workers, servers);
}

using Values = std::vector<float>;

// What a worker has of a tensor in a round.
using Given = std::function<Values(size_t tensor, size_t worker, int round)>;

// All workers sum all tensors round by round, tensors and workers in any order. `mayKill` is asked whether a server is
// killed now. Yields the sums of each worker: by worker, tensor and round.
std::vector<std::vector<std::vector<Values>>> sumsOf(
    Random& random, SimulatedService& service, size_t servers, int rounds, const Given& given,
    const std::function<bool()>& mayKill = [] { return false; }) {
  const size_t workers = service.declaration().workers, tensors = service.declaration().tensors.size();
  std::vector<std::vector<std::vector<Values>>> all(workers, std::vector<std::vector<Values>>(tensors));
  std::set<std::pair<size_t, size_t>> underWay;
  size_t left = workers * tensors * static_cast<size_t>(rounds);
  for (int idle = 0; left > 0;) {
    for (auto at = underWay.begin(); at != underWay.end();) {
      const auto [worker, tensor] = *at;
      if (!service.isDone(worker, tensor)) {
        ++at;
        continue;
      }
      service.machine(worker).finish(tensor);
      --left;
      at = underWay.erase(at);
    }
    if (const size_t worker = pick(random, workers), tensor = pick(random, tensors); pick(random, 4) == 0) {
      auto& done = all[worker][tensor];
      if (!underWay.contains({worker, tensor}) && std::ssize(done) < rounds) {
        done.reserve(static_cast<size_t>(rounds));
        done.push_back(given(tensor, worker, static_cast<int>(done.size())));
        service.machine(worker).announce(tensor, std::as_writable_bytes(std::span(done.back())));
        underWay.emplace(worker, tensor);
      }
    }
    if (servers > 0 && mayKill()) {
      const Machine server = workers + pick(random, servers);
      if (service.isAlive(server)) service.kill(server);
    }
    idle = service.step(random) ? 0 : idle + 1;
    if (idle == 10'000) throw std::runtime_error("nothing can happen any more");
  }
  return all;
}

// Numbers that each form packs without a loss: in each 160 of them, of which top-k sends 16, 10 are not zero; with
// other forms all have one of two values. Those of all workers have them at the same places.
Values exact(const Packing& packing, size_t worker, int round) {
  const auto number = static_cast<float>((worker + 1) * static_cast<size_t>(round + 1));
  const bool isTopK = packing.form == Compression::Form::kTopK;
  Values values(packing.elements);
  for (size_t i = 0; i < values.size(); ++i) {
    const bool isNegative = (i * 7 + static_cast<size_t>(round)) % 3 == 0;
    values[i] = isTopK && i % 16 > 0 ? 0 : isNegative ? -number : 2 * number;
  }
  return values;
}

void expectExactSums(Random& random, size_t workers, size_t servers, const std::function<bool()>& mayKill) {
  const Declaration declaration = drawnDeclaration(random, workers, servers);
  SimulatedService service(declaration, servers, pick(random, 2) == 0 ? 1 : 300'000);
  const auto packingOf = [&](size_t tensor) { return declaration.tensors[tensor].packing; };
  constexpr int kRounds = 3;
  const auto all = sumsOf(
      random, service, servers, kRounds,
      [&](size_t tensor, size_t worker, int round) { return exact(packingOf(tensor), worker, round); }, mayKill);
  for (size_t tensor = 0; tensor < declaration.tensors.size(); ++tensor) {
    for (int round = 0; round < kRounds; ++round) {
      Values expected(packingOf(tensor).elements);
      for (size_t worker = 0; worker < workers; ++worker) {
        const Values one = exact(packingOf(tensor), worker, round);
        for (size_t i = 0; i < one.size(); ++i) expected[i] += one[i];
      }
      for (size_t worker = 0; worker < workers; ++worker)
        ASSERT_EQ(expected, all[worker][tensor][static_cast<size_t>(round)])
            << "tensor " << tensor << " on worker " << worker << " in round " << round;
    }
  }
}

TEST(CompressedSums, AreExactWherePackingLosesNothing) {
  test::forSeeds(
      15, [](Random& random) { expectExactSums(random, 1 + pick(random, 4), pick(random, 4), [] { return false; }); });
}

// No number is summed twice or lost, whatever was under way.
TEST(CompressedSums, AreExactWhereServersAreKilledAndPackingLosesNothing) {
  test::forSeeds(50, [](Random& random) {
    const size_t seldom = size_t{20} << pick(random, 6);
    expectExactSums(random, 1 + pick(random, 4), 1 + pick(random, 4), [&] { return pick(random, seldom) == 0; });
  });
}

// Numbers from -2 to 2 of which packing loses something; the same wherever they are asked.
Values mixed(size_t tensor, size_t worker, int round, size_t count) {
  auto state = static_cast<uint32_t>(1000 * tensor + 100 * worker + static_cast<size_t>(round) + 1);
  Values values(count);
  for (float& value : values) {
    state = state * 1'664'525 + 1'013'904'223;  // the generator of Numerical Recipes
    value = static_cast<float>(static_cast<int32_t>(state)) * 0x1p-30F;
  }
  return values;
}

// A sum that is made anew on another machine is another one, which also those get that have had the first.
TEST(CompressedSums, AreTheSameOnAllWorkersWhereServersAreKilled) {
  test::forSeeds(40, [](Random& random) {
    const size_t workers = 2 + pick(random, 3), servers = 1 + pick(random, 3), seldom = size_t{20} << pick(random, 6);
    const Declaration declaration = drawnDeclaration(random, workers, servers);
    SimulatedService service(declaration, servers, 300'000);
    const auto all = sumsOf(
        random, service, servers, /*rounds=*/4,
        [&](size_t tensor, size_t worker, int round) {
          return mixed(tensor, worker, round, declaration.tensors[tensor].packing.elements);
        },
        [&] { return pick(random, seldom) == 0; });
    for (size_t worker = 1; worker < workers; ++worker) ASSERT_EQ(all[0], all[worker]) << "worker " << worker;
  });
}

// Of two rounds with data, and then so many with zeros that nothing is kept any more.
TEST(CompressedSums, AddUpToAllDataInTheEnd) {
  test::forSeeds(2, [](Random& random) {
    constexpr size_t kElements = 3000, kWorkers = 3;
    for (const size_t servers : {size_t{0}, size_t{2}}) {
      std::vector<Declaration::Tensor> tensors;
      for (const Compression& form : kForms) tensors.push_back(tensorOf(form, kElements));
      SimulatedService service(declarationOf(tensors, kWorkers, servers), servers, 300'000);
      const auto given = [&](size_t tensor, size_t worker, int round) {
        return round < 2 ? mixed(tensor, worker, round, kElements) : Values(kElements);
      };
      constexpr int kRounds = 400;
      const auto all = sumsOf(random, service, servers, kRounds, given);
      for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
        std::vector<double> expected(kElements), came(kElements);
        for (size_t worker = 0; worker < kWorkers; ++worker)
          for (int round = 0; round < 2; ++round) {
            const Values values = given(tensor, worker, round);
            for (size_t i = 0; i < kElements; ++i) expected[i] += values[i];
          }
        for (const Values& sum : all[0][tensor])
          for (size_t i = 0; i < kElements; ++i) came[i] += sum[i];
        for (size_t i = 0; i < kElements; ++i)
          ASSERT_NEAR(expected[i], came[i], 0.1) << "tensor " << tensor << " at " << i << ", servers " << servers;
      }
    }
  });
}

// All workers see that a number is none, as without compression, and later sums do not.
TEST(CompressedSums, AreNotFiniteWhereDataIsNotAndOnlyThen) {
  Random random(test::seedOfRun());
  for (const Compression& form : kForms) {
    const Declaration declaration = declarationOf({tensorOf(form, 3200)}, 2, 1);
    SimulatedService service(declaration, 1, 300'000);
    const Packing& packing = declaration.tensors[0].packing;
    const auto all = sumsOf(random, service, 1, /*rounds=*/3, [&](size_t, size_t worker, int round) {
      Values values = exact(packing, worker, round);
      if (round == 1 && worker == 1) values[160] = std::numeric_limits<float>::infinity();
      return values;
    });
    for (size_t worker = 0; worker < 2; ++worker) {
      EXPECT_FALSE(std::isfinite(all[worker][0][1][160]));
      Values expected = exact(packing, 0, 2);
      const Values other = exact(packing, 1, 2);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] += other[i];
      EXPECT_EQ(expected, all[worker][0][2]);
    }
  }
}

// ---- one worker's tensor

// Numbers that lie between two that the form has, again and again; the sum is that of one worker.
TEST(CompressedTensor, SendsLaterWhatItHasLost) {
  for (const auto& [form, most] :
       {std::pair<Compression, float>{Compression::float16(), 0x1p-10F}, {Compression::bfloat16(), 0x1p-7F}}) {
    constexpr float kNumber = 1 + 0x1p-12F;
    CompressedTensor tensor(Packing::of(form, 100));
    double all = 0;
    for (int round = 1; round <= 64; ++round) {
      Values data(100, kNumber);
      tensor.pack(std::as_writable_bytes(std::span(data)));
      tensor.unpack();
      all += data.back();
      EXPECT_NEAR(round * double{kNumber}, all, most);
    }
  }
}

// ---- workers by hand

constexpr Machine kServer = 2;

class CompressedAlone : public ::testing::Test {
 protected:
  static Frame frame(FrameKind kind, uint64_t round) {
    const bool hasPiece = kind == FrameKind::kAddend || kind == FrameKind::kSum;
    return {kind, hasPiece ? uint32_t{kChunkBytes} : 0, 0, round, 0};
  }
  // The server takes worker 1's data, and its sum is there: zeros.
  void exchange() {
    sums_.announce(0, std::as_writable_bytes(std::span(data_)));
    while (sums_.take(kServer)) continue;
    ASSERT_TRUE(sums_.arrived(kServer, frame(FrameKind::kGrant, 0)).ok());
    sent_ = piece(sums_.take(kServer).value());
    const Frame sum = frame(FrameKind::kSum, 0);
    const Result<MutableBytes> room = sums_.roomFor(kServer, sum);
    ASSERT_TRUE(room.ok());
    std::ranges::fill(*room, std::byte{0});
    ASSERT_TRUE(sums_.arrived(kServer, sum).ok());
  }
  std::vector<std::byte> piece(const Outgoing& frame) {
    std::vector<std::byte> bytes(frame.piece.begin(), frame.piece.end());
    sums_.written(frame.frame.kind == FrameKind::kAddend ? kServer : 0, frame);
    return bytes;
  }

  Values data_ = Values(480, 1.0F);
  std::vector<std::byte> sent_;
  MachineSums sums_{{{tensorOf(Compression::oneBit(), 480)}, {{0, 0, kChunkBytes, kServer}}, 2}, 1, 3};
};

TEST_F(CompressedAlone, IsDoneWhenAllWorkersHaveTheSum) {
  exchange();
  EXPECT_TRUE(sums_.isHere(0));
  EXPECT_FALSE(sums_.isDone(0)) << "it could be made anew";
  EXPECT_EQ(frame(FrameKind::kHave, 1), sums_.take(kServer)->frame);
  EXPECT_FALSE(sums_.take(kServer));
  EXPECT_TRUE(sums_.arrived(kServer, frame(FrameKind::kRelease, 1)).ok());
  EXPECT_TRUE(sums_.isDone(0));
  EXPECT_EQ(std::vector<size_t>{0}, sums_.takeDone());
  sums_.finish(0);
  EXPECT_EQ(Values(480), data_);
}

TEST_F(CompressedAlone, IsDoneWhereItsServerIsLostAndAllHaveTheSum) {
  exchange();
  EXPECT_TRUE(sums_.move(kServer, {0}).ok());
  EXPECT_EQ(frame(FrameKind::kHave, 1), sums_.take(0)->frame);
  EXPECT_FALSE(sums_.isDone(0));
  EXPECT_TRUE(sums_.arrived(0, frame(FrameKind::kRelease, 1)).ok());
  EXPECT_TRUE(sums_.isDone(0));
}

// It has a sum that the other worker lacks: it gives its data once more, and takes the sum that is made of that.
TEST_F(CompressedAlone, GivesUpASumThatAnotherWorkerLacks) {
  exchange();
  EXPECT_TRUE(sums_.move(kServer, {0}).ok());
  EXPECT_EQ(frame(FrameKind::kHave, 1), sums_.take(0)->frame);
  EXPECT_TRUE(sums_.arrived(0, frame(FrameKind::kRelease, 0)).ok());
  EXPECT_FALSE(sums_.isHere(0));
  EXPECT_EQ(frame(FrameKind::kAnnounce, 0), sums_.take(0)->frame);
  EXPECT_TRUE(sums_.arrived(0, frame(FrameKind::kGrant, 0)).ok());
  const Outgoing again = sums_.take(0).value();
  EXPECT_EQ(frame(FrameKind::kAddend, 0), again.frame);
  EXPECT_EQ(sent_, piece(again));
  const Frame sum = frame(FrameKind::kSum, 0);
  std::ranges::copy(sent_, sums_.roomFor(0, sum)->begin());
  EXPECT_TRUE(sums_.arrived(0, sum).ok());
  EXPECT_TRUE(sums_.isDone(0)) << "a worker is not lost";
  sums_.finish(0);
  EXPECT_EQ(Values(480, 1), data_);
}

}  // namespace
}  // namespace treadle::summation::compressed_sums_test

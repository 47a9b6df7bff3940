#pragma once
// What the tests of sparse gradients train: tables beside dense layers, and one table whose gradient each rank makes in
// its own layout.

#include <torch/nn/modules/embedding.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/train/ddp/hooks.h"
#include "tests/train/ddp/uneven.h"

namespace treadle::test::sparse_test {

using namespace ddp_test;

constexpr int64_t kRows = 12, kWidth = 5;

inline at::Tensor denseOf(const at::Tensor& gradient) {
  return gradient.defined() && gradient.is_sparse() ? gradient.to_dense() : gradient;
}

inline ::testing::AssertionResult isSparseAndCoalesced(const at::Tensor& gradient) {
  if (gradient.defined() && gradient.is_sparse() && gradient.is_coalesced()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << (gradient.defined() ? gradient.toString() : "undefined");
}

// Some rows of a table; the first one twice.
inline at::Tensor indexesOf(int rank, int step, int which) {
  const auto seed = static_cast<uint64_t>(1000 * which + 10 * step + rank);
  at::Tensor indexes = at::randint(kRows, {6}, at::make_generator<at::CPUGeneratorImpl>(seed), at::kLong);
  indexes[1] = indexes[0];
  return indexes;
}

// Tables beside dense layers: one that every rank uses, a sum of rows, one that some ranks use, and one of nobody.
struct TablesImpl : torch::nn::Module {
  explicit TablesImpl(bool isSparse) {
    const auto options = torch::nn::EmbeddingOptions(kRows, kWidth).sparse(isSparse);
    words = register_module("words", torch::nn::Embedding(options));
    bags = register_module(
        "bags",
        torch::nn::EmbeddingBag(torch::nn::EmbeddingBagOptions(kRows, kWidth).mode(torch::kSum).sparse(isSparse)));
    rare = register_module("rare", torch::nn::Embedding(options));
    never = register_module("never", torch::nn::Embedding(options));
    first = register_parameter("first", random({kWidth, 7}, 1));
    last = register_parameter("last", random({7, 3}, 2));
    to(at::kDouble);
    const at::NoGradGuard noGrad;
    uint64_t seed = 3;
    for (at::Tensor& parameter : parameters()) parameter.copy_(random(parameter.sizes(), seed++));
  }
  static bool usesRare(int rank, int step) { return (rank + step) % 3 == 0 && step % 4 != 0; }
  at::Tensor loss(int rank, int step) {
    const at::Tensor offsets = at::arange(0, 6, 2, at::kLong);
    at::Tensor hidden = words->forward(indexesOf(rank, step, 1)).narrow(0, 0, 3);
    hidden = hidden + bags->forward(indexesOf(rank, step, 2), offsets);
    if (usesRare(rank, step)) hidden = hidden + rare->forward(indexesOf(rank, step, 3)).narrow(0, 1, 3);
    return at::tanh(hidden.mm(first)).mm(last).square().mean();
  }
  torch::nn::Embedding words{nullptr}, rare{nullptr}, never{nullptr};
  torch::nn::EmbeddingBag bags{nullptr};
  at::Tensor first, last;
};
TORCH_MODULE(Tables);

// The mean over so many ranks, by dense gradients, is in `.grad` then.
inline void meanOfAll(TablesImpl& net, int size, int step) {
  net.zero_grad();
  for (int rank = 0; rank < size; ++rank) net.loss(rank, step).div(size).backward();
}

inline std::vector<at::Tensor> valuesOf(const torch::nn::Module& module) { return copiesOf(module.parameters()); }

inline void expectAverages(const TablesImpl& actual, const TablesImpl& alone,
                           const AutogradContext* context = nullptr) {
  const auto parameters = actual.named_parameters();
  for (const auto& entry : alone.named_parameters()) {
    const at::Tensor& parameter = parameters[entry.key()];
    const at::Tensor gradient = context != nullptr ? context->gradient(parameter) : parameter.grad();
    if (!entry.value().grad().defined()) {
      EXPECT_FALSE(gradient.defined()) << entry.key();
      continue;
    }
    EXPECT_TRUE(close(denseOf(gradient), entry.value().grad(), 1e-12)) << entry.key();
    if (entry.key().find("weight") != std::string::npos) {
      EXPECT_TRUE(isSparseAndCoalesced(gradient)) << entry.key();
    }
  }
}

// A table, of which each rank makes the gradient that a letter says: s(parse), d(ense), b(oth), n(one), t: of two
// sparse dimensions, e: sparse, of no rows.
struct TableImpl : torch::nn::Module {
  explicit TableImpl(bool isSparse = true, at::ScalarType dtype = at::kDouble) : isSparse(isSparse) {
    weight = register_parameter("weight", random({kRows, kWidth}, 7).to(dtype));
  }
  at::Tensor loss(char kind, int rank, int step) const {
    const auto seed = static_cast<uint64_t>(100 * step + rank);
    const at::Tensor all = (weight * random({kRows, kWidth}, seed).to(weight.scalar_type())).sum();
    if (kind == 'd') return all;
    if (kind == 't')
      return (at::gather(weight, 1, indexesOf(rank, step, 1).remainder(kWidth).view({6, 1}), isSparse) * 3).sum();
    if (kind == 'e') return at::embedding(weight, at::empty({0}, at::kLong), -1, false, isSparse).sum();
    const at::Tensor rows = at::embedding(weight, indexesOf(rank, step, 1), -1, false, isSparse);
    const at::Tensor some = (rows * random({6, kWidth}, seed).to(weight.scalar_type())).sum();
    return kind == 'b' ? some + all : some;
  }
  const bool isSparse;
  at::Tensor weight;
};
TORCH_MODULE(Table);

// A dense parameter in a bucket of its own, which is stepped before the table.
struct BesideTableImpl : torch::nn::Module {
  explicit BesideTableImpl(bool isSparse) : table(register_module("table", Table(isSparse))) {
    beside = register_parameter("beside", random({9}, 8));
  }
  at::Tensor loss(char kind, int rank, int step) const {
    const at::Tensor dense = (beside * random({9}, static_cast<uint64_t>(500 + 10 * step + rank))).sum();
    return kind == 'n' ? dense : dense + table->loss(kind, rank, step);
  }
  void backward(char kind, int rank, int step, double divisor) const { loss(kind, rank, step).div(divisor).backward(); }
  Table table;
  at::Tensor beside;
};
TORCH_MODULE(BesideTable);

inline bool isSparseOnAll(const std::string& kinds) { return kinds.find_first_of("db") == std::string::npos; }

struct Replica {
  Replica(Worker& worker, int size, const DdpOptions& options = {}, const GroupOptions& groupOptions = {})
      : rank(worker.self().rank), ddp(net, ProcessGroup::make(worker, ranks(size), groupOptions), options) {}

  void backward(const std::string& kinds, int step, AutogradContext* context = nullptr) {
    const char kind = kinds[static_cast<size_t>(rank)];
    if (kind == 'n') return context != nullptr ? ddp.skipPass(*context) : ddp.skipPass();
    const at::Tensor loss = net->loss(kind, rank, step);
    context != nullptr ? context->backward({loss}) : loss.backward();
  }
  const at::Tensor& grad() const { return net->weight.grad(); }
  // The sizes of what the last pass has sent.
  std::vector<size_t> sent() const {
    std::vector<size_t> bytes;
    const DdpStats stats = ddp.stats();
    for (const DdpBucketTimes& bucket : stats.recent.back().buckets) bytes.push_back(bucket.bytes);
    return bytes;
  }

  int rank;
  Table net;
  DistributedDataParallel<Table> ddp;
};

inline at::Tensor sumOfAll(const std::string& kinds, int step) {
  Table alone(/*isSparse=*/false);
  for (size_t rank = 0; rank < kinds.size(); ++rank)
    if (kinds[rank] != 'n') alone->loss(kinds[rank], static_cast<int>(rank), step).backward();
  return alone->weight.grad();
}

inline void expectGradient(const at::Tensor& actual, const at::Tensor& expected, bool isSparse) {
  ASSERT_EQ(actual.defined(), expected.defined());
  if (!expected.defined()) return;
  EXPECT_TRUE(close(denseOf(actual), expected, 1e-12));
  if (isSparse) {
    EXPECT_TRUE(isSparseAndCoalesced(actual));
  } else {
    EXPECT_FALSE(actual.is_sparse());
  }
}

}  // namespace treadle::test::sparse_test

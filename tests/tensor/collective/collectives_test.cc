// Collectives on tensors: every dtype that can be added, any strides, and what is refused.

#include <ATen/ATen.h>
#include <treadle/group.h>

#include "tests/support/expect_error.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::collectives_test {
namespace {

class Collectives : public ::testing::Test {
 protected:
  TensorJob job{{"r0", "r1", "r2"}};
};

constexpr at::ScalarType kReducible[] = {at::kHalf,  at::kBFloat16, at::kFloat, at::kDouble, at::kByte,   at::kChar,
                                         at::kShort, at::kInt,      at::kLong,  at::kUInt16, at::kUInt32, at::kUInt64};

TEST_F(Collectives, AllReduceAddsEveryDtype) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    for (at::ScalarType type : kReducible) {
      SCOPED_TRACE(c10::toString(type));
      at::Tensor mine = (at::arange(0, 7, at::kFloat) + worker.self().rank).to(type);
      allReduce(group, mine).wait();
      EXPECT_TRUE(at::equal(mine, (at::arange(0, 7, at::kFloat) * 3 + 3).to(type)));
      at::Tensor highest = at::full({2}, worker.self().rank, at::TensorOptions(type));
      allReduce(group, highest, ReduceOp::kMax).wait();
      EXPECT_TRUE(at::equal(highest, at::full({2}, 2, at::TensorOptions(type))));
    }
  });
}

// As signed numbers these would be below 0.
TEST_F(Collectives, TakeTheHighestBitOfUnsignedNumbersAsAPartOfTheNumber) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    for (const auto& [type, bits] :
         {std::pair(at::kByte, 8), {at::kUInt16, 16}, {at::kUInt32, 32}, {at::kUInt64, 64}}) {
      SCOPED_TRACE(c10::toString(type));
      const uint64_t large = (uint64_t{1} << (bits - 1)) + 5;
      const auto filled = [type = type](uint64_t value) {
        return at::scalar_tensor(static_cast<int64_t>(value), at::kLong).to(type).expand({2}).clone();
      };
      at::Tensor highest = filled(worker.self().rank == 1 ? large : 7);
      allReduce(group, highest, ReduceOp::kMax).wait();
      EXPECT_TRUE(at::equal(highest, filled(large)));
      at::Tensor average = filled(worker.self().rank == 1 ? large : 2);
      allReduce(group, average, ReduceOp::kAverage).wait();
      EXPECT_TRUE(at::equal(average, filled((large + 4) / 3)));
    }
  });
}

// The smallest numbers are sums too, also for a thread that takes them for 0.
TEST_F(Collectives, AddSubnormalNumbersAlikeOnAllMembers) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names()), other = ProcessGroup::make(worker, job.names());
    const bool flushes = at::globalContext().setFlushDenormal(worker.self().rank == 0);
    for (int step = 0; step < 20; ++step) {
      std::array<float, 2> numbers = {1e-40F, 3e-39F};
      at::Tensor mine = at::from_blob(numbers.data(), {2});
      Future<void> sum;
      if (worker.self().rank != 0) sum = allReduce(group, mine);
      barrier(other).wait();
      if (worker.self().rank == 0) sum = allReduce(group, mine);  // it comes last, and adds
      sum.wait();
      for (size_t i = 0; i < 2; ++i) {
        uint32_t bits = 0, expected = 0;
        const float sum = std::array{3e-40F, 9e-39F}[i];
        std::memcpy(&bits, &numbers[i], 4);
        std::memcpy(&expected, &sum, 4);
        EXPECT_NEAR(expected, bits, 1);
      }
    }
    if (flushes) at::globalContext().setFlushDenormal(false);
  });
}

TEST_F(Collectives, ReduceBooleansAndComplexNumbers) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    const bool last = worker.self().rank == 2;
    at::Tensor any = at::full({5}, last, at::kBool), every = at::full({5}, last, at::kBool);
    allReduce(group, any, ReduceOp::kMax).wait();
    allReduce(group, every, ReduceOp::kMin).wait();
    EXPECT_TRUE(at::equal(any, at::ones({5}, at::kBool)));
    EXPECT_TRUE(at::equal(every, at::zeros({5}, at::kBool)));
    for (at::ScalarType type : {at::kComplexFloat, at::kComplexDouble}) {
      at::Tensor mine = at::full({3}, c10::complex<double>(1, worker.self().rank), type).conj();
      allReduce(group, mine).wait();
      EXPECT_TRUE(at::equal(mine, at::full({3}, c10::complex<double>(3, -3), type)));
    }
  });
}

TEST_F(Collectives, SendReachesItsRecvInAnyStrides) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    const int rank = worker.self().rank, next = (rank + 1) % 3, previous = (rank + 2) % 3;
    at::Tensor mine = at::full({3, 4}, c10::complex<double>(rank, 1), at::kComplexDouble).conj().t();
    at::Tensor base = at::zeros({4, 6}, at::kComplexDouble), got = base.slice(1, 0, 6, 2);
    Future<void> sent = send(group, mine, next);
    recv(group, got, previous).wait();
    sent.wait();
    EXPECT_TRUE(at::equal(got, at::full({4, 3}, c10::complex<double>(previous, -1), at::kComplexDouble)));
    EXPECT_EQ(base.select(1, 1).abs().sum().item<double>(), 0) << "what lies between is left alone";
  });
}

TEST_F(Collectives, TakeAnyStrides) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    at::Tensor base = at::zeros({6, 4}, at::kDouble);
    at::Tensor view = base.t().slice(1, 0, 6, 2);  // every other row, transposed
    view.fill_(worker.self().rank + 1);
    allReduce(group, view).wait();
    EXPECT_TRUE(at::equal(view, at::full({4, 3}, 6.0, at::kDouble)));
    EXPECT_EQ(base.sum().item<double>(), 72) << "what lies between is left alone";
    base.fill_(worker.self().rank);
    broadcast(group, view, 1).wait();
    EXPECT_TRUE(at::equal(view, at::ones({4, 3}, at::kDouble)));
    EXPECT_EQ(base.select(0, 1)[0].item<double>(), worker.self().rank);
    at::Tensor none = at::zeros({0, 3}), one = at::scalar_tensor(1.5 * worker.self().rank, at::kFloat);
    allReduce(group, none).wait();
    allReduce(group, one, ReduceOp::kAverage).wait();
    EXPECT_EQ(one.dim(), 0);
    EXPECT_EQ(one.item<float>(), 1.5f);
  });
}

TEST_F(Collectives, BroadcastSendsTheNumbersOfAConjugatedView) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    at::Tensor base = at::full({2}, c10::complex<double>(1, worker.self().rank + 1), at::kComplexDouble);
    at::Tensor mine = worker.self().rank == 0 ? base.conj() : base;
    broadcast(group, mine, 0).wait();
    EXPECT_TRUE(at::equal(mine, at::full({2}, c10::complex<double>(1, -1), at::kComplexDouble)));
  });
}

TEST_F(Collectives, BroadcastCarriesAnyDtype) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    for (at::ScalarType type : {at::kBool, at::kComplexFloat, at::kHalf, at::kFloat8_e5m2, at::kLong}) {
      SCOPED_TRACE(c10::toString(type));
      at::Tensor sent = at::tensor({0.0f, 1.0f, 2.0f, 3.0f}).to(type),
                 mine = worker.self().rank == 2 ? sent.clone() : at::zeros({4}, type);
      broadcast(group, mine, 2).wait();
      EXPECT_TRUE(at::equal(mine.to(at::kComplexFloat), sent.to(at::kComplexFloat)));
    }
  });
}

// Each rank offers the tensors in an order of its own.
TEST_F(Collectives, PushPullMatchesTensorsByName) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    const int rank = worker.self().rank;
    for (int step = 0; step < 3; ++step) {
      std::vector<at::Tensor> tensors;
      std::vector<Future<void>> sums(40);
      // One of them is cut into pieces.
      for (int i = 0; i < 40; ++i)
        tensors.push_back(at::full({i == 7 ? 1'200'000 : 10 * i, 1}, rank + i, i % 2 > 0 ? at::kFloat : at::kDouble));
      for (int i = 0; i < 40; ++i) {
        const auto next = static_cast<size_t>((rank == 1 ? 39 - i : (7 * rank + i) % 40));
        sums[next] = pushPull(group, "tensor" + std::to_string(next), tensors[next], {.op = ReduceOp::kAverage});
      }
      for (int i = 0; i < 40; ++i) {
        sums[static_cast<size_t>(i)].wait();
        const at::Tensor& mine = tensors[static_cast<size_t>(i)];
        EXPECT_TRUE(at::equal(mine, at::full_like(mine, i + 1))) << i;
      }
    }
  });
}

TEST_F(Collectives, PushPullTakesAnyStridesAndKeepsTheTensor) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    at::Tensor base = at::zeros({6, 4}, at::kDouble);
    Future<void> sum, scalar;
    at::Tensor one = at::scalar_tensor(worker.self().rank, at::kFloat);
    {
      at::Tensor view = base.t().slice(1, 0, 6, 2);
      view.fill_(worker.self().rank + 1);
      sum = pushPull(group, "view", view);
      scalar = pushPull(group, "scalar", one);
    }
    sum.wait();
    scalar.wait();
    EXPECT_TRUE(at::equal(base.t().slice(1, 0, 6, 2), at::full({4, 3}, 6.0, at::kDouble)));
    EXPECT_EQ(base.sum().item<double>(), 72) << "what lies between is left alone";
    EXPECT_EQ(one.item<float>(), 3);
    std::vector<Future<void>> sums;
    for (int i = 0; i < 20; ++i) {
      at::Tensor gone = at::ones({50'000});
      sums.push_back(pushPull(group, std::to_string(i), gone));
    }
    for (auto& future : sums) future.wait();
  });
}

TEST_F(Collectives, PushPullComparesShapesAndDtypes) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    const bool other = worker.self().rank == 1;
    at::Tensor shaped = other ? at::ones({3, 2}) : at::ones({2, 3}),
               typed = at::ones({4}, other ? at::kHalf : at::kInt), fine = at::ones({4});
    Future<void> shapes = pushPull(group, "shaped", shaped), types = pushPull(group, "typed", typed);
    Future<void> sum = pushPull(group, "fine", fine);
    const std::string ofShapes = messageOf<ArgumentError>([&] { shapes.wait(); }),
                      ofTypes = messageOf<ArgumentError>([&] { types.wait(); });
    for (const char* part : {"pushPull of 'shaped'", "float32 [2, 3]", "float32 [3, 2]", "'r1'"})
      EXPECT_TRUE(contains(ofShapes, part));
    for (const char* part : {"pushPull of 'typed'", "int32 [4]", "float16 [4]"}) EXPECT_TRUE(contains(ofTypes, part));
    sum.wait();
    EXPECT_TRUE(at::equal(fine, at::full({4}, 3.0F)));
    at::Tensor none;
    EXPECT_THROW(pushPull(group, "none", none), ArgumentError);
  });
}

TEST_F(Collectives, AParameterIsWrittenWithoutItsGradientsKnowing) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    at::Tensor parameter = at::ones({3}, at::kDouble).requires_grad_();
    allReduce(group, parameter).wait();
    EXPECT_TRUE(parameter.is_leaf());
    EXPECT_EQ(parameter.sum().item<double>(), 9);
  });
}

TEST_F(Collectives, TheTensorIsKeptUntilTheOperationEnds) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    std::vector<Future<void>> sums;
    for (int i = 0; i < 20; ++i) {
      at::Tensor gone = at::ones({50'000});
      sums.push_back(allReduce(group, gone));
    }
    for (auto& sum : sums) sum.wait();
  });
}

TEST_F(Collectives, ReduceWritesToTheRootAlone) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    const int rank = worker.self().rank;
    at::Tensor mine = at::full({4, 3}, rank + 1.0, at::kDouble).t();
    reduce(group, mine, 1).wait();
    EXPECT_TRUE(at::equal(mine, at::full({3, 4}, rank == 1 ? 6.0 : rank + 1.0, at::kDouble)));
  });
}

TEST_F(Collectives, AllGatherAndReduceScatterAreOutOfPlace) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    const int rank = worker.self().rank;
    for (at::ScalarType type : kReducible) {
      SCOPED_TRACE(c10::toString(type));
      const at::Tensor mine = at::full({2, 2}, rank + 1, at::TensorOptions(type));
      at::Tensor all = at::zeros({3, 2, 2}, type), back = at::zeros({2, 2}, type);
      allGather(group, mine, all).wait();
      for (int other = 0; other < 3; ++other)
        EXPECT_TRUE(at::equal(all[other], at::full({2, 2}, other + 1, at::TensorOptions(type))));
      reduceScatter(group, all, back).wait();
      EXPECT_TRUE(at::equal(back, at::full({2, 2}, 3 * (rank + 1), at::TensorOptions(type))));
      EXPECT_TRUE(at::equal(mine, at::full({2, 2}, rank + 1, at::TensorOptions(type))));
    }
  });
}

TEST_F(Collectives, AllToAllTransposesAcrossTheMembers) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    const int rank = worker.self().rank;
    at::Tensor mine = at::arange(3) + 10 * rank, got = at::zeros({3, 2}, at::kLong);
    at::Tensor column = got.select(1, 0);  // of any strides
    allToAll(group, mine, column).wait();
    EXPECT_TRUE(at::equal(column, at::arange(3) * 10 + rank));
    EXPECT_EQ(got.select(1, 1).sum().item<int64_t>(), 0) << "what lies between is left alone";
  });
}

TEST_F(Collectives, GatherAndScatterNeedNothingOfTheOthers) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    const int rank = worker.self().rank;
    at::Tensor mine = at::full({5}, rank, at::kFloat), back = at::zeros({5}), none;
    at::Tensor all = rank == 2 ? at::zeros({3, 5}) : at::Tensor();
    gather(group, mine, all, 2).wait();
    EXPECT_TRUE(rank != 2 || at::equal(all.select(1, 4), at::arange(3, at::kFloat)));
    scatter(group, rank == 2 ? all * 2 : none, back, 2).wait();
    EXPECT_TRUE(at::equal(back, at::full({5}, 2.0 * rank, at::kFloat)));
  });
}

TEST_F(Collectives, TakeATensorOfAnySizeForEachMember) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    const int rank = worker.self().rank;
    std::vector<at::Tensor> all, sent, received;
    for (int other = 0; other < 3; ++other) {
      all.push_back(at::zeros({other, 4}, at::kBool));
      sent.push_back(at::full({rank + 2 * other, 2}, 10 * rank + other));
      received.push_back(at::zeros({other + 2 * rank, 2}, at::kLong));
    }
    allGather(group, at::ones({rank, 4}, at::kBool), all).wait();
    allToAll(group, sent, received).wait();
    for (int other = 0; other < 3; ++other) {
      EXPECT_TRUE(at::equal(all[static_cast<size_t>(other)], at::ones({other, 4}, at::kBool)));
      EXPECT_TRUE(at::equal(received[static_cast<size_t>(other)],
                            at::full({other + 2 * rank, 2}, 10 * other + rank, at::kLong)));
    }
  });
}

TEST_F(Collectives, AnElementIsNotCut) {
  job.onAll([&](Worker& worker) {
    ProcessGroup group = ProcessGroup::make(worker, job.names());
    at::Tensor four = at::ones({4}, at::kDouble), other = at::ones({4}, at::kDouble);
    EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { allToAll(group, four, other); }), "4 elements cannot be cut"));
  });
}

TEST_F(Collectives, TensorsThatDoNotFitAreRefused) {
  ProcessGroup group = ProcessGroup::make(job[0], {"r0"});
  at::Tensor two = at::ones({2}), three = at::ones({3}), wide = at::ones({2}, at::kDouble);
  std::vector<at::Tensor> none;
  EXPECT_TRUE(
      contains(messageOf<ArgumentError>([&] { allGather(group, two, wide); }), "Float and the output's Double"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { allGather(group, two, three); }), "the output has 12 bytes"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { reduceScatter(group, three, two); }), "the input has 12 bytes"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { allToAll(group, none, none); }), "0 tensors were given"));
  EXPECT_TRUE(contains(messageOf<ArgumentError>([&] { reduce(group, two, 1); }), "there is no rank 1"));
}

// Each begins an operation with this tensor; what else it needs is in `others`, which lives as long.
using Begin = std::function<Future<void>(const ProcessGroup&, at::Tensor&, std::vector<at::Tensor>& others)>;
struct NamedBegin {
  std::string name;
  Begin begin;
  bool comparesShapes = true;
};

std::vector<NamedBegin> operations() {
  const auto like = [](const at::Tensor& tensor, int64_t rows) {
    return at::zeros({rows, tensor.numel()}, tensor.options());
  };
  return {
      {"allReduce", [](auto& group, auto& tensor, auto&) { return allReduce(group, tensor); }},
      {"reduce", [](auto& group, auto& tensor, auto&) { return reduce(group, tensor, 1); }},
      {"reduceScatter",
       [](auto& group, auto& tensor, auto& others) {
         others = {at::zeros({tensor.numel() / group.size()}, tensor.options())};
         return reduceScatter(group, tensor, others[0]);
       }},
      {"allGather",
       [like](auto& group, auto& tensor, auto& others) {
         others = {like(tensor, group.size())};
         return allGather(group, tensor, others[0]);
       }},
      {"gather",
       [like](auto& group, auto& tensor, auto& others) {
         others = {group.rank() == 0 ? like(tensor, group.size()) : at::Tensor()};
         return gather(group, tensor, others[0], 0);
       }},
      {"scatter",
       [like](auto& group, auto& tensor, auto& others) {
         others = {group.rank() == 0 ? like(tensor, group.size()) : at::Tensor()};
         return scatter(group, others[0], tensor, 0);
       }},
      {"allToAll",
       [](auto& group, auto& tensor, auto& others) {
         others = {at::zeros_like(tensor)};
         return allToAll(group, tensor, others[0]);
       }},
      {"broadcast", [](auto& group, auto& tensor, auto&) { return broadcast(group, tensor, 0); }},
      {"send", [](auto& group, auto& tensor,
                  auto&) { return group.rank() == 0 ? send(group, tensor, 1) : recv(group, tensor, 0); }},
      {"allGather of tensors of any sizes",
       [](auto& group, auto& tensor, auto& others) {
         others = {at::zeros_like(tensor), at::zeros_like(tensor)};
         return allGather(group, tensor, others);
       }},
      {"allToAll of tensors of any sizes",
       [](auto& group, auto& tensor, auto& others) {
         others = {at::zeros_like(tensor), at::zeros_like(tensor)};
         return allToAll(group, {tensor, tensor}, others);
       },
       false},
  };
}

// Of as many bytes. The group goes on.
TEST(TensorsThatDiffer, FailOnAllMembersWithWhatBothAre) {
  TensorJob job({"r0", "r1"});
  for (const size_t smallBytes : {GroupOptions{}.smallBytes, size_t{0}})
    job.onAll([&](Worker& worker) {
      const int rank = worker.self().rank;
      const ProcessGroup group = ProcessGroup::make(worker, job.names(), {.smallBytes = smallBytes});
      for (const NamedBegin& operation : operations())
        for (const bool isShape : {true, false}) {
          SCOPED_TRACE(operation.name + (isShape ? ", other shapes" : ", other dtypes"));
          if (isShape && !operation.comparesShapes) continue;
          at::Tensor tensor = at::ones({4, 3}, at::kFloat);
          if (rank == 1) tensor = isShape ? at::ones({3, 4}, at::kFloat) : at::ones({4, 3}, at::kInt);
          std::vector<at::Tensor> others;
          const std::string why = messageOf<ArgumentError>([&] { operation.begin(group, tensor, others).wait(); });
          for (const char* part : {"'r0' (rank 0) calls", "'r1' (rank 1) calls", "of float32"})
            EXPECT_TRUE(contains(why, part)) << why;
          if (isShape) {
            EXPECT_TRUE(contains(why, "float32 [4, 3]") && contains(why, "float32 [3, 4]")) << why;
          } else {
            EXPECT_TRUE(contains(why, "of int32")) << why;
          }
          tensor = at::ones({4, 3}, at::kFloat);
          operation.begin(group, tensor, others).wait();
        }
    });
}

TEST_F(Collectives, WhatCannotBeReducedIsRefused) {
  ProcessGroup group = ProcessGroup::make(job[0], {"r0"});
  auto refused = [&](at::Tensor tensor) { return messageOf<ArgumentError>([&] { allReduce(group, tensor).wait(); }); };
  EXPECT_TRUE(contains(refused(at::ones({2}, at::kBool)), "bool have no sum"));
  EXPECT_TRUE(contains(refused(at::ones({2}).to(at::kFloat8_e5m2)), "Float8_e5m2"));
  EXPECT_TRUE(contains(refused(at::ones({2}).to_sparse()), "dense"));
  EXPECT_TRUE(contains(refused(at::empty({2}, at::TensorOptions(at::kMeta))), "dense"));
  EXPECT_TRUE(contains(refused(at::Tensor()), "dense"));
  at::Tensor x = at::ones({2});
  messageOf<ArgumentError>([&] { broadcast(group, x, 1).wait(); });
}

// At the call, and not when the result is there.
TEST_F(Collectives, RefuseOutputsWhoseElementsShareMemory) {
  ProcessGroup group = ProcessGroup::make(job[0], {"r0"});
  at::Tensor one = at::ones({1}).expand({3}), three = at::ones({3});
  std::vector<at::Tensor> inputs = {three}, outputs = {one};
  const auto refused = [](auto call) { return messageOf<ArgumentError>(call); };
  EXPECT_TRUE(
      contains(refused([&] { allReduce(group, one); }), "an output of sizes [3] has several elements in one place"));
  EXPECT_TRUE(contains(refused([&] { allGather(group, three, one); }), "in one place"));
  EXPECT_TRUE(contains(refused([&] { allGather(group, three, outputs); }), "in one place"));
  EXPECT_TRUE(contains(refused([&] { allToAll(group, inputs, outputs); }), "in one place"));
  allGather(group, one, three).wait();  // an input may
  EXPECT_TRUE(at::equal(three, at::ones({3})));
}

}  // namespace
}  // namespace treadle::test::collectives_test

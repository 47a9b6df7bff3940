// The code of docs/guide/calls_and_references.md and when_things_go_wrong.md: it compiles and does what they
// say.

#include <ATen/ATen.h>
#include <treadle/autograd.h>
#include <treadle/rpc.h>

#include "tests/support/gate.h"
#include "tests/support/tensor_job.h"

namespace {

using namespace std::chrono_literals;

// [functions]
at::Tensor scale(const at::Tensor& values, double factor) { return values * factor; }

std::string whoAsks(treadle::CallContext& call) { return call.caller().name; }

struct Batch {
  at::Tensor images;
  std::vector<int64_t> labels;
};
TREADLE_FIELDS(Batch, images, labels)

int64_t countOf(const Batch& batch) { return static_cast<int64_t>(batch.labels.size()); }

class Tally {
 public:
  explicit Tally(int64_t start) : sum_(start) {}
  Tally(Tally&& other) noexcept : sum_(other.sum_.load()) {}
  int64_t add(int64_t more) { return sum_ += more; }

 private:
  std::atomic<int64_t> sum_;  // handlers run on several threads
};

treadle::Functions functions() {
  treadle::Functions functions;
  functions.add<&scale>("scale").add<&whoAsks>("whoAsks").add<&countOf>("countOf");
  functions.addType<Tally, int64_t>("Tally").add<&Tally::add>("Tally.add");
  return functions;
}
// [/functions]

// [passing-a-reference-on]
int64_t addTo(const treadle::RRef<Tally>& tally, int64_t more) { return tally.call<&Tally::add>(more); }
// [/passing-a-reference-on]

// [blocking]
treadle::test::Gate gate;  // stands for anything that is waited for outside of Treadle

void waitForTheGate() {
  treadle::blocking([] { gate.wait(); });
}
// [/blocking]

// [task]
treadle::Task<at::Tensor> average(treadle::CallContext& call, std::vector<std::string> workers, at::Tensor values) {
  std::vector<treadle::Future<at::Tensor>> parts;
  for (const std::string& name : workers) parts.push_back(call.worker().async<&scale>(name, values, 2.0));
  at::Tensor sum = at::zeros_like(values);
  for (treadle::Future<at::Tensor>& part : parts) sum += co_await part;
  co_return sum / static_cast<int64_t>(workers.size());
}
// [/task]

at::Tensor failing(const at::Tensor&) { throw std::out_of_range("row 12 of 10"); }
at::Tensor undeclared(const at::Tensor& values) { return values; }

treadle::Functions allFunctions() {
  treadle::Functions all = functions();
  all.add<&average>("average").add<&addTo>("addTo").add<&waitForTheGate>("waitForTheGate").add<&failing>("failing");
  return all;
}

class Guide : public ::testing::Test {
 protected:
  treadle::test::TensorJob job{{"A", "B", "C"}, allFunctions()};
  treadle::Worker& worker = job[0];
};

TEST_F(Guide, Calls) {
  // [calls]
  at::Tensor x = at::ones({2, 3});
  at::Tensor y = worker.call<&scale>("B", x, 2.0);                       // waits
  treadle::Future<at::Tensor> later = worker.async<&scale>(2, x, 3.0);   // by rank; does not wait
  treadle::RRef<at::Tensor> there = worker.remote<&scale>("B", x, 4.0);  // the result stays on B
  at::Tensor z = later.wait() + there.toHere();
  // [/calls]
  EXPECT_EQ(y.sum().item<double>(), 12);
  EXPECT_EQ(z.sum().item<double>(), 42);
  EXPECT_EQ(there.owner().name, "B");
  EXPECT_EQ(worker.call<&whoAsks>("C"), "A");
  // [struct]
  int64_t count = worker.call<&countOf>("B", Batch{at::rand({2, 8, 8}), {3, 7}});
  // [/struct]
  EXPECT_EQ(count, 2);
}

TEST_F(Guide, References) {
  // [objects]
  treadle::RRef<Tally> tally = worker.make<Tally>("B", 10);
  int64_t now = tally.call<&Tally::add>(5);                        // runs on B
  int64_t then = worker.call<&addTo>("C", tally, 1);               // C calls B; nothing goes through A
  treadle::RRef<at::Tensor> mine = worker.makeRRef(at::zeros(3));  // a reference to a value of this worker
  mine.localValue().add_(1);
  // [/objects]
  EXPECT_EQ(now, 15);
  EXPECT_EQ(then, 16);
  EXPECT_TRUE(at::equal(mine.toHere(), at::ones(3)));
  EXPECT_THROW(tally.localValue(), treadle::StateError);
}

TEST_F(Guide, Conversions) {
  // [conversions]
  treadle::RRef<at::Tensor> atC = worker.remote<&scale>("C", at::ones(3), 2.0);
  at::Tensor product = worker.call<&scale>("B", atC, 5.0);  // B gets the tensor straight from C
  int64_t sum = worker.call<&addTo>("B", Tally(40), 2);     // the Tally stays here; B calls back
  // [/conversions]
  EXPECT_EQ(product.sum().item<double>(), 30);
  EXPECT_EQ(sum, 42);
}

TEST_F(Guide, Operators) {
  // [operators]
  treadle::RRef<at::Tensor> output = worker.remote<&scale>("B", at::ones({2, 3}), 2.0);
  treadle::RRef<at::Tensor> loss = (output - 1).pow(2).mean();  // all of it on B
  at::Tensor sorted = treadle::op(worker, "C", "aten::sort", {at::rand(5), -1, true}).at(0);
  // [/operators]
  EXPECT_EQ(loss.toHere().item<double>(), 1);
  EXPECT_GE(sorted[0].item<double>(), sorted[4].item<double>());
}

TEST_F(Guide, Tasks) {
  at::Tensor average = worker.call<&::average>("B", std::vector<std::string>{"A", "C"}, at::ones(2));
  EXPECT_TRUE(at::equal(average, at::full(2, 2.0)));
}

TEST_F(Guide, Futures) {
  at::Tensor x = at::ones(2);
  // [futures]
  std::vector<treadle::Future<at::Tensor>> parts;
  for (const std::string name : {"B", "C"}) parts.push_back(worker.async<&scale>(name, x, 2.0));
  at::Tensor sum = treadle::whenAll(parts).wait().at(0) + parts.at(1).wait();
  treadle::Future<double> mean = parts.at(0).then([](const at::Tensor& part) { return part.mean().item<double>(); });
  // [/futures]
  EXPECT_EQ(sum.sum().item<double>(), 8);
  EXPECT_EQ(mean.wait(), 2);
}

TEST_F(Guide, TimeLimits) {
  std::string told;
  // [time-limit]
  try {
    worker.with({.timeout = 100ms}).call<&waitForTheGate>("B");
  } catch (const treadle::TimeoutError& error) {
    told = error.what();
  }
  // [/time-limit]
  gate.open();
  EXPECT_NE(told.find("100"), std::string::npos) << told;
}

TEST_F(Guide, Errors) {
  at::Tensor x = at::ones(2);
  std::string told;
  // [catching]
  try {
    worker.call<&failing>("B", x);
  } catch (const treadle::RemoteError& error) {
    told = error.worker() + ": " + error.type() + ": " + error.what();  // what the function threw there
  } catch (const treadle::PeerLostError& error) {
    told = error.worker() + " is gone";
  } catch (const treadle::Error& error) {
    told = error.what();
  }
  // [/catching]
  EXPECT_EQ(told.find("B: std::out_of_range: "), 0u) << told;
  EXPECT_NE(told.find("row 12 of 10"), std::string::npos) << told;
  EXPECT_THROW(worker.call<&undeclared>("B", x), treadle::StateError);
  EXPECT_THROW(worker.call<&scale>("D", x, 1.0), treadle::NotFoundError);
  EXPECT_THROW(worker.call<&scale>("B", at::eye(2).to_sparse_csr(), 1.0), treadle::ArgumentError);
  EXPECT_THROW(worker.callNamed<int>("B", "absent", 1), treadle::NotFoundError);
  EXPECT_THROW(worker.callNamed<int>("B", "scale", 1), treadle::StateError);
}

TEST_F(Guide, ALostWorkerIsNamed) {
  job.kill(2);
  try {
    worker.call<&scale>("C", at::ones(2), 1.0);
    FAIL() << "C is gone";
  } catch (const treadle::PeerLostError& error) {
    EXPECT_EQ(error.worker(), "C");
  }
}

// What coming_from_pytorch_rpc.md says of what is not there.
TEST_F(Guide, WhatIsNotThereSaysSo) {
  treadle::AutogradContext context(worker, {.mode = treadle::AutogradMode::kFast});
  at::Tensor leaf = at::ones(2).requires_grad_();
  at::Tensor loss = worker.call<&scale>("B", leaf, 2.0).sum();
  std::string local = treadle::test::messageOf<treadle::StateError>([&] { loss.backward(); });
  EXPECT_TRUE(treadle::test::contains(local, "call AutogradContext::backward instead of Tensor::backward"));
  at::Tensor unused = worker.call<&scale>("C", leaf, 2.0);
  std::string fast = treadle::test::messageOf<treadle::StateError>([&] { context.backward({loss}); });
  EXPECT_TRUE(treadle::test::contains(fast, "never got a gradient"));
}

}  // namespace

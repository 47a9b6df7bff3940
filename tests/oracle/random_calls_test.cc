// Distributed autograd against autograd in one process: random computations that call each other on 2 to 5 workers
// (many operations, in place and through views, also on what came and what was sent, custom functions, checkpointed
// segments, hooks that change gradients, sparse gradients, several tensors in a call, also of integers, nested and
// parallel calls, references that are fetched or forwarded), delayed here and there so that messages overtake each
// other, give the same gradients, from any subset of what they made, from several roots and from one on another worker,
// in float64 to 1e-10; and so they do over links that delay messages.
// `make oracle SEEDS=2000` goes through more of them.

#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <treadle/autograd.h>

#include <chrono>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "tests/support/delaying_relay.h"
#include "tests/support/gate.h"
#include "tests/support/passes_of.h"
#include "tests/support/seeds.h"
#include "tests/support/tensor_job.h"

namespace treadle::test::random_calls_test {
namespace {

using Tensors = std::vector<at::Tensor>;

// How often a computation may call others that call others.
constexpr int64_t kDepth = 3;
constexpr size_t kDenseLeaves = 2, kLeaves = kDenseLeaves + 1;  // on each worker; the last one has sparse gradients
constexpr int kRows = 8;                                        // of that one

// Of the seed that runs, by rank: the same tensors whether calls go anywhere or not.
std::vector<Tensors>* leaves = nullptr;

struct Work {
  int64_t seed = 0;
  int64_t depth = 0;
  bool all = false;  // everything that is made is used, as FAST mode wants
};
TREADLE_FIELDS(Work, seed, depth, all)

enum class Way { kCall, kParallel, kFetched, kForwarded, kByReference };

// Of two inputs, with gradients of its own.
struct SineOfProduct : torch::autograd::Function<SineOfProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& a, const at::Tensor& b) {
    context->save_for_backward({a, b});
    return at::sin(a * b);
  }
  static Tensors backward(torch::autograd::AutogradContext* context, Tensors gradients) {
    const Tensors saved = context->get_saved_variables();
    const at::Tensor common = gradients[0] * at::cos(saved[0] * saved[1]);
    return {common * saved[1], common * saved[0]};
  }
};

Tensors segment(const Tensors& given) { return {at::tanh(given[0]) * at::sin(given[1])}; }

// Where a computation has others done.
class Elsewhere {
 public:
  virtual ~Elsewhere() = default;
  virtual at::Tensor segmentOf(const at::Tensor& a, const at::Tensor& b) = 0;  // `segment`, checkpointed or not
  virtual Tensors call(Way way, const std::vector<int>& ranks, const Work& work, const Tensors& given) = 0;
  // Where messages travel, holds up this computation, and later the gradient of the value: so that others overtake.
  virtual void delay(const at::Tensor& value, std::chrono::microseconds time) = 0;
};

// One computation on one worker: from what it is given and its own leaves.
class Computation {
 public:
  Computation(int rank, const Work& work, Tensors given, Elsewhere& elsewhere, int workers)
      : random_(static_cast<uint64_t>(work.seed)),
        work_(work),
        elsewhere_(elsewhere),
        workers_(workers),
        weight_(leaves->at(static_cast<size_t>(rank))[0]),
        bias_(leaves->at(static_cast<size_t>(rank))[1]),
        table_(leaves->at(static_cast<size_t>(rank)).back()) {
    for (at::Tensor& one : given) take(std::move(one));
    givesOrder_ = order_.defined();
    for (size_t leaf = 0; leaf < kDenseLeaves; ++leaf)
      if (work.all || draw(2) == 0 || values_.empty()) values_.push_back(leaves->at(static_cast<size_t>(rank))[leaf]);
  }

  Tensors run() {
    for (int steps = 3 + draw(4); steps > 0; --steps) {
      if (work_.depth > 0 && draw(3) == 0) {
        haveDone();
      } else {
        values_.push_back(combined());
      }
      if (draw(6) == 0) elsewhere_.delay(values_.back(), std::chrono::microseconds(draw(300)));
    }
    Tensors some;
    if (work_.all) {
      some = {sumOf(values_), values_.back() * 2};
    } else {
      for (int left = 1 + draw(3); left > 0; --left) some.push_back(any());
    }
    if (givesOrder_) some.push_back(order_.flip(0));
    return some;
  }

  static at::Tensor sumOf(const Tensors& values) {
    at::Tensor sum = at::zeros({4, 4}, at::kDouble);
    for (const at::Tensor& value : values) sum = sum + at::tanh(value);
    return sum;
  }

 private:
  int draw(int below) { return static_cast<int>(pick(random_, static_cast<uint64_t>(below))); }
  // Integers, an order of rows, have no gradients.
  void take(at::Tensor one) { one.is_floating_point() ? values_.push_back(std::move(one)) : void(order_ = one); }
  const at::Tensor& any() { return values_[static_cast<size_t>(draw(static_cast<int>(values_.size())))]; }

  at::Tensor combined() {
    const at::Tensor a = any(), b = any();
    switch (draw(16)) {
      case 0: return a + b;
      case 1: return at::sin(a) * at::tanh(b);
      case 2: return at::matmul(at::tanh(a), at::tanh(b));
      case 3: return at::tanh(a).t();
      case 4: return a + b.select(0, 1);                                  // broadcast
      case 5: return at::add(a, 1.0).mul_(0.5).add_(b);                   // in place
      case 6: return at::cat({a.narrow(1, 2, 2), b.narrow(1, 0, 2)}, 1);  // views
      case 7: return at::exp(at::sin(a)).contiguous().view({2, 8}).t().reshape({4, 4});
      case 8: return at::where(a > b, a, at::sin(b));
      case 9: return SineOfProduct::apply(a, b);
      case 10: return elsewhere_.segmentOf(a, b);
      case 11: return withGradientsChanged(at::sin(a));
      case 12: return order_.defined() ? a.index_select(0, order_) * b : a.flip(0) * b;
      case 13: return at::tanh(at::linear(a, weight_, bias_.select(0, 1)));  // in two parts (node_parts.h)
      case 14:
        return a + at::embedding(draw(2) == 0 ? table_ : table_ * 1, at::full({4}, draw(kRows), at::kLong), -1, false,
                                 /*sparse=*/true);
      default: {
        at::Tensor changed = a.clone();
        changed.narrow(0, 1, 2).mul_(b.narrow(0, 0, 2));  // in place through a view
        return changed;
      }
    }
  }

  static at::Tensor withGradientsChanged(at::Tensor value) {
    if (value.requires_grad()) value.register_hook([](const at::Tensor& gradient) { return gradient * 0.5; });
    return value;
  }

  void haveDone() {
    const Way way = static_cast<Way>(draw(5));
    Tensors given = {any()};
    if (way == Way::kCall || way == Way::kParallel)
      for (int more = draw(3); more > 0; --more) given.push_back(any());
    const std::vector<int> ranks = {draw(workers_), draw(workers_)};
    const Work work{static_cast<int64_t>(random_()), work_.depth - 1, work_.all};
    const bool changesWhatIsSent = draw(4) == 0;
    if (changesWhatIsSent) given[0] = given[0].clone();
    // What toHere gives at the owner is the value itself, which others see.
    const bool isOurs = way == Way::kCall || way == Way::kParallel;
    if (isOurs && draw(3) == 0) given.push_back(at::arange(4).roll(1 + draw(3)));
    for (at::Tensor& made : elsewhere_.call(way, ranks, work, given)) {
      const bool isDense = made.is_floating_point();
      if (isOurs && isDense && draw(4) == 0) made.mul_(0.5);
      if (isOurs && isDense && draw(6) == 0) made.select(1, 2).add_(given[0].select(1, 0));
      take(std::move(made));
    }
    if (!changesWhatIsSent) return;
    given[0].narrow(0, 1, 2).mul_(2);
    values_.push_back(given[0]);
  }

  Random random_;
  const Work work_;
  Tensors values_;
  Elsewhere& elsewhere_;
  const int workers_;
  const at::Tensor weight_, bias_, table_;
  at::Tensor order_;  // the last one that came
  bool givesOrder_ = false;
};

Tensors compute(int rank, const Work& work, const Tensors& given, Elsewhere& elsewhere, int workers) {
  return Computation(rank, work, given, elsewhere, workers).run();
}

// What a seed gives where it is told only that another one follows.
Work next(Work work) {
  work.seed ^= 0x5bd1e995;
  return work;
}

// ---- in one process, without any call

class Here final : public Elsewhere {
 public:
  explicit Here(int workers) : workers_(workers) {}

  at::Tensor segmentOf(const at::Tensor& a, const at::Tensor& b) override { return segment({a, b})[0]; }
  Tensors call(Way way, const std::vector<int>& ranks, const Work& work, const Tensors& given) override {
    // Copies, as a network makes.
    const auto at = [&](int rank, const Work& one, const Tensors& values) {
      return copiesOf(compute(rank, one, copiesOf(values), *this, workers_));
    };
    switch (way) {
      case Way::kCall: return at(ranks[0], work, given);
      case Way::kParallel: {
        Tensors both = at(ranks[0], work, given);
        for (at::Tensor& one : at(ranks[1], next(work), given)) both.push_back(one);
        return both;
      }
      case Way::kFetched: return {at(ranks[0], work, given)[0]};
      default: return {at(ranks[1], next(work), {at(ranks[0], work, given)[0]})[0]};
    }
  }

  void delay(const at::Tensor&, std::chrono::microseconds) override {}

 private:
  static Tensors copiesOf(const Tensors& values) {
    Tensors copies;
    for (const at::Tensor& value : values) copies.push_back(value.clone());
    return copies;
  }

  const int workers_;
};

// ---- over real workers

at::Tensor lossOf(const Tensors& made, uint64_t which);
at::Tensor lossThere(const Tensors& made, int64_t which) { return lossOf(made, static_cast<uint64_t>(which)); }

Tensors many(CallContext& call, const Work& work, const Tensors& given);
at::Tensor one(CallContext& call, const Work& work, const at::Tensor& given);
at::Tensor ofReference(CallContext& call, const Work& work, const RRef<at::Tensor>& given);

class There final : public Elsewhere {
 public:
  explicit There(Worker& worker) : worker_(worker) {}

  at::Tensor segmentOf(const at::Tensor& a, const at::Tensor& b) override { return checkpoint(segment, {a, b})[0]; }
  Tensors call(Way way, const std::vector<int>& ranks, const Work& work, const Tensors& given) override {
    switch (way) {
      case Way::kCall: return worker_.call<&many>(ranks[0], work, given);
      case Way::kParallel: {
        Future<Tensors> first = worker_.async<&many>(ranks[0], work, given);
        Tensors second = worker_.call<&many>(ranks[1], next(work), given), both = first.wait();
        both.insert(both.end(), second.begin(), second.end());
        return both;
      }
      case Way::kFetched: return {worker_.remote<&one>(ranks[0], work, given[0]).toHere()};
      case Way::kForwarded:
        return {worker_.call<&one>(ranks[1], next(work), worker_.remote<&one>(ranks[0], work, given[0]))};
      case Way::kByReference:
        return {worker_.call<&ofReference>(ranks[1], next(work), worker_.remote<&one>(ranks[0], work, given[0]))};
    }
    return {};
  }

  void delay(const at::Tensor& value, std::chrono::microseconds time) override {
    std::this_thread::sleep_for(time);
    if (!value.requires_grad() || value.is_leaf()) return;
    value.register_hook([time](const at::Tensor& gradient) {
      std::this_thread::sleep_for(time);
      return gradient;
    });
  }

 private:
  Worker& worker_;
};

Tensors many(CallContext& call, const Work& work, const Tensors& given) {
  There there(call.worker());
  return compute(call.worker().self().rank, work, given, there, static_cast<int>(leaves->size()));
}
at::Tensor one(CallContext& call, const Work& work, const at::Tensor& given) { return many(call, work, {given})[0]; }
at::Tensor ofReference(CallContext& call, const Work& work, const RRef<at::Tensor>& given) {
  return many(call, work, {given.toHere()})[0];
}

// ---- the comparison

// By which channels workers reach each other.
enum class Links : uint8_t { kUsual, kDelayed };

class Job {
 public:
  Job(int workers, Links links) {
    std::vector<std::string> names;
    for (int rank = 0; rank < workers; ++rank) names.push_back("w" + std::to_string(rank));
    Functions functions;
    functions.add<&many>("many").add<&one>("one").add<&ofReference>("ofReference").add<&lossThere>("lossThere");
    const auto adjust = [&](JoinOptions& options) {
      if (links == Links::kDelayed) relay(options);
    };
    job_ = std::make_unique<TensorJob>(names, functions, AutogradOptions(), adjust);
  }

  TensorJob& workers() { return *job_; }
  uint64_t delayed() const {
    uint64_t delayed = 0;
    for (const auto& relay : relays_) delayed += relay->delayed();
    return delayed;
  }

 private:
  // Others reach this worker through a relay, and it the first one.
  void relay(JoinOptions& options) {
    if (relays_.empty()) relayTo(options.launch->masterPort);
    if (options.launch->rank > 0) options.launch->masterAddress = DelayingRelay::kHost;
    const uint16_t port = freePort();
    relayTo(port);
    options.listenAddress = "tcp://127.0.0.1:" + std::to_string(port);
    options.announceAddress = std::string("tcp://") + DelayingRelay::kHost + ":" + std::to_string(port);
    options.channels = Channels::parse("tcp").value();
  }
  void relayTo(uint16_t port) {
    relays_.push_back(std::make_unique<DelayingRelay>(port, seedOfRun() + relays_.size(), kLongestDelay));
  }

  static constexpr std::chrono::microseconds kLongestDelay{400};
  std::vector<std::unique_ptr<DelayingRelay>> relays_;  // go after the job
  std::unique_ptr<TensorJob> job_;
};

std::vector<Tensors> leavesOf(int workers, Random& random) {
  at::manual_seed(random());
  std::vector<Tensors> all(static_cast<size_t>(workers));
  for (Tensors& ofOne : all)
    for (size_t i = 0; i < kLeaves; ++i)
      ofOne.push_back(at::randn({i < kDenseLeaves ? 4 : kRows, 4}, at::kDouble).requires_grad_());
  return all;
}

// Some of what was made, of which the gradients are asked.
at::Tensor lossOf(const Tensors& made, uint64_t which) {
  Tensors some;
  for (size_t i = 0; i < made.size(); ++i)
    if ((which >> i & 1U) != 0) some.push_back(made[i]);
  return Computation::sumOf(some).sum() + at::zeros({}, at::kDouble).requires_grad_();
}

void expectEqual(const at::Tensor& found, const at::Tensor& expected, const at::Tensor& leaf) {
  const auto dense = [none = at::zeros_like(leaf)](const at::Tensor& one) {
    return !one.defined() ? none : one.is_sparse() ? one.to_dense() : one;
  };
  EXPECT_TRUE(closeToLargest(dense(found), dense(expected)));
  if (found.defined() && expected.defined()) {
    EXPECT_EQ(found.is_sparse(), expected.is_sparse());
  }
  EXPECT_TRUE(expected.defined() || !found.defined()) << "what takes no part gets no gradient";
}

// Here with one root or two, or with one on another worker.
void backward(TensorJob& job, AutogradContext& context, const Tensors& made, const std::vector<uint64_t>& subsets,
              bool retainsGraph, Random& random) {
  const BackwardOptions options{.retainGraph = retainsGraph};
  if (subsets.size() == 1 && pick(random, 3) == 0) {
    const auto rank = static_cast<int>(pick(random, job.size()));
    return context.backward(job[0].remote<&lossThere>(rank, made, static_cast<int64_t>(subsets[0])), options);
  }
  Tensors roots;
  for (const uint64_t subset : subsets) roots.push_back(lossOf(made, subset));
  context.backward(roots, options);
}

// From two passes, each from one subset or two.
void compare(TensorJob& job, AutogradMode mode, Random& random) {
  const auto workers = static_cast<int>(leaves->size());
  const Work work{static_cast<int64_t>(random()), kDepth, mode == AutogradMode::kFast};
  std::vector<std::vector<uint64_t>> passes = {{~uint64_t{0}}};
  if (!work.all) passes = {{random()}, {random()}};
  for (auto& subsets : passes)
    if (pick(random, 3) == 0) subsets.push_back(random());
  Tensors flat;
  for (const Tensors& ofOne : *leaves) flat.insert(flat.end(), ofOne.begin(), ofOne.end());
  Here here(workers);
  const Tensors alone = compute(0, work, {}, here, workers);
  AutogradContext context(job[0], {mode});
  There there(job[0]);
  const Tensors made = compute(0, work, {}, there, workers);
  Tensors expected(flat.size());
  for (size_t pass = 0; pass < passes.size(); ++pass) {
    const bool last = pass + 1 == passes.size();
    Tensors losses;
    for (const uint64_t subset : passes[pass]) losses.push_back(lossOf(alone, subset));
    auto more = torch::autograd::grad(losses, flat, {}, !last, false, /*allow_unused=*/true);
    backward(job, context, made, passes[pass], !last, random);
    for (size_t i = 0; i < flat.size(); ++i) {
      if (more[i].defined()) expected[i] = expected[i].defined() ? expected[i] + more[i] : more[i];
      expectEqual(gradient(job[i / kLeaves], context.id(), flat[i]), expected[i], flat[i]);
    }
  }
}

// How many messages of all workers the tensors depend on.
size_t takingPart(TensorJob& job, const AutogradContext& context, const at::Tensor& root) {
  auto known = contextOf(job[0], context);
  const autograd::Lineage lineage = valueOrThrow(known->graph->lineageOf({{root, {}}}));
  size_t count = 0;
  for (int rank : lineage.ranks()) count += lineage.numbers(rank).size();
  return count;
}

std::string nameOf(TensorJob& job, int rank) {
  return "worker '" + job.names()[static_cast<size_t>(rank)] + "' (rank " + std::to_string(rank) + ")";
}

// By worker: the messages of the context whose graph it keeps, as a failure is to name them.
std::map<std::string, std::set<std::string>> sendsOf(TensorJob& job, const AutogradContext& context) {
  std::map<std::string, std::set<std::string>> sends;
  for (int rank = 0; rank < static_cast<int>(job.size()); ++rank) {
    const auto known = autograd::interceptorOf(job[static_cast<size_t>(rank)]).contexts().find(context.id());
    if (!known.ok()) continue;
    for (const auto& send : (*known)->graph->sends()) {
      const autograd::MessageInfo& message = send->message();
      std::ostringstream text;
      text << "message " << message.messageId << " to " << nameOf(job, message.peerRank) << " (" << message.function
           << ") tensors " << at::IntArrayRef(send->tensorIndexes());
      sends[nameOf(job, rank)].insert(text.str());
    }
  }
  return sends;
}

// "2 of 7 messages that worker 'w1' (rank 1) sent ...: message 3 to worker 'w0' (rank 0) (f) tensors [0, 1]; ...": the
// first numbers, of all workers. Up to 8 messages of each are named, by all that the worker knows of them.
size_t missingIn(const std::string& failure, std::map<std::string, std::set<std::string>> sends) {
  constexpr size_t kNamed = 8;
  const std::regex clause(R"((\d+) of \d+ messages that (worker '\w+' \(rank \d+\)) sent)");
  const std::regex message(R"(message \d+ to worker [^;]* tensors \[[^;]*\])");
  size_t sum = 0;
  for (std::sregex_iterator found(failure.begin(), failure.end(), clause), end; found != end;) {
    const std::smatch here = *found++;
    const std::string text(here.suffix().first, found == end ? failure.end() : (*found)[0].first);
    const size_t missing = std::stoul(here[1]);
    size_t named = 0;
    for (std::sregex_iterator one(text.begin(), text.end(), message); one != end; ++one)
      named += sends[here[2]].erase(one->str());
    EXPECT_EQ(std::min(missing, kNamed), named) << failure;
    sum += missing;
  }
  return sum;
}

// FAST mode where something may have been sent for nothing: it fails then, and only then. More messages than those may
// get no gradient, as nodes behind them wait.
void promise(TensorJob& job, Random& random) {
  const Work work{static_cast<int64_t>(random()), kDepth, false};
  const uint64_t subset = random();
  There there(job[0]);
  size_t used = 0;
  {
    AutogradContext context(job[0], {AutogradMode::kSmart});
    used = takingPart(job, context, lossOf(compute(0, work, {}, there, static_cast<int>(leaves->size())), subset));
  }
  AutogradContext context(job[0], {AutogradMode::kFast});
  const at::Tensor loss = lossOf(compute(0, work, {}, there, static_cast<int>(leaves->size())), subset);
  const auto sends = sendsOf(job, context);
  const size_t sent = job.sendsKept(context.id());
  ASSERT_LE(used, sent);
  if (used == sent) return context.backward({loss}, {.timeout = kHangs});
  const std::string why = messageOf<StateError>([&] { context.backward({loss}, {.timeout = kHangs}); });
  EXPECT_GE(missingIn(why, sends), sent - used) << why;
}

class RandomCalls : public ::testing::TestWithParam<std::tuple<int, Links>> {};

TEST_P(RandomCalls, giveTheGradientsOfOneProcess) {
  const auto [workers, links] = GetParam();
  Job job(workers, links);
  forSeeds((oracleSeeds() + 3) / 4, [&, workers = workers](Random& random) {
    std::vector<Tensors> own = leavesOf(workers, random);
    leaves = &own;
    for (AutogradMode mode : {AutogradMode::kSmart, AutogradMode::kFast}) compare(job.workers(), mode, random);
    promise(job.workers(), random);
    leaves = nullptr;
  });
  EXPECT_TRUE(test::eventuallyReleased([&] { return job.workers().openContexts() == 0; }));
  EXPECT_EQ(job.delayed() > 0, links == Links::kDelayed);
}
INSTANTIATE_TEST_SUITE_P(Workers, RandomCalls,
                         ::testing::Combine(::testing::Values(2, 3, 4, 5), ::testing::Values(Links::kUsual)));
INSTANTIATE_TEST_SUITE_P(WorkersOverDelayingLinks, RandomCalls,
                         ::testing::Combine(::testing::Values(2, 3, 4, 5), ::testing::Values(Links::kDelayed)));

}  // namespace
}  // namespace treadle::test::random_calls_test

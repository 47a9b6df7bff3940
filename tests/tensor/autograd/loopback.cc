#include "tests/tensor/autograd/loopback.h"

#include "treadle/core/base/error.h"

namespace treadle::autograd {

Status LoopbackWorker::sendGradients(Pass&, int rank, std::vector<MessageGradients> messages) {
  // A network hands over bytes, not memory.
  for (MessageGradients& message : messages)
    for (MaybeGradient& gradient : message.gradients)
      if (gradient && gradient->defined()) gradient = gradient->clone();
  job_.mail_.push_back({rank, std::move(messages)});
  return {};
}

void LoopbackWorker::onIdle(Pass& pass) {
  EXPECT_TRUE(pass.idle()) << "worker " << rank_;  // in one thread nothing can come between
  ++idleCalls;
}

LoopbackJob::LoopbackJob(int workers, int64_t contextId, uint64_t seed, LeafSlots* slots, AutogradMode mode)
    : slots_(slots ? *slots : ownSlots_), random_(seed) {
  for (int rank = 0; rank < workers; ++rank) {
    workers_.push_back(std::make_unique<LoopbackWorker>(*this, rank, contextId, mode));
  }
}

std::vector<at::Tensor> LoopbackJob::send(int from, int to, const std::vector<at::Tensor>& tensors,
                                          std::string function) {
  Departure departure = valueOrThrow(worker(from).graph->addSend(to, function, tensors));
  std::vector<at::Tensor> received;
  for (const at::Tensor& tensor : tensors) received.push_back(tensor.detach().clone());
  std::vector<at::Tensor> withGradient;
  for (int64_t index : departure.indexes) withGradient.push_back(received[static_cast<size_t>(index)]);
  throwIfError(worker(to).graph->addReceive({departure.messageId, from, function}, departure.lineage, withGradient));
  return received;
}

at::Tensor LoopbackJob::send(int from, int to, const at::Tensor& tensor) {
  return send(from, to, std::vector<at::Tensor>{tensor}).front();
}

Status LoopbackJob::start(int rank, std::vector<Root> roots, bool retainGraph) {
  ContextGraph& own = *worker(rank).graph;
  const bool smart = own.mode() == AutogradMode::kSmart;
  Lineage sends;
  if (smart) {
    Result<Lineage> found = own.lineageOf(roots);
    if (!found.ok()) return found.status();
    sends = *std::move(found);
  }
  for (int each = 0; each < static_cast<int>(workers_.size()); ++each) {
    PassOptions options{1, retainGraph};
    if (smart) options.sends = sends.numbers(each);
    auto made = Pass::create(worker(each).graph, worker(each), slots_, options,
                             each == rank ? std::move(roots) : std::vector<Root>());
    if (!made.ok()) return made.status();
    worker(each).pass = *made;
  }
  return worker(rank).pass->runUntilIdle();
}

Status LoopbackJob::deliverOne() {
  std::swap(mail_[std::uniform_int_distribution<size_t>(0, mail_.size() - 1)(random_)], mail_.back());
  Mail mail = std::move(mail_.back());
  mail_.pop_back();
  ++mails_;
  delivered_ += mail.messages.size();
  Pass& pass = *worker(mail.to).pass;
  for (MessageGradients& message : mail.messages)
    TREADLE_RETURN_IF_ERROR(pass.addReady(message.messageId, std::move(message.gradients)));
  // Now and then two arrive before either is worked on.
  if (!mail_.empty() && random_() % 3 == 0) TREADLE_RETURN_IF_ERROR(deliverOne());
  return pass.runUntilIdle();
}

Status LoopbackJob::deliverAll() {
  while (!mail_.empty()) TREADLE_RETURN_IF_ERROR(deliverOne());
  return {};
}

Status LoopbackJob::finish() {
  Status first;
  for (auto& worker : workers_) {
    if (!worker->pass) continue;
    Status finished = worker->pass->finish();
    if (first.ok()) first = finished;
    worker->pass = nullptr;
  }
  return first;
}

Status LoopbackJob::backward(int rank, std::vector<Root> roots, bool retainGraph) {
  Status ran = start(rank, std::move(roots), retainGraph);
  if (ran.ok()) ran = deliverAll();
  if (!ran.ok()) {
    for (auto& worker : workers_) {
      if (worker->pass) worker->pass->fail(ran);
    }
  }
  Status finished = finish();
  return ran.ok() ? finished : ran;
}

::testing::AssertionResult closeTo(const at::Tensor& actual, const at::Tensor& expected) {
  if (!expected.defined() || !actual.defined()) {
    bool zero = (!actual.defined() || actual.eq(0).all().item<bool>()) &&
                (!expected.defined() || expected.eq(0).all().item<bool>());
    if (zero) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "one is undefined: " << actual << " and " << expected;
  }
  if (actual.sizes() != expected.sizes()) {
    return ::testing::AssertionFailure() << "shapes " << actual.sizes() << " and " << expected.sizes();
  }
  if (actual.numel() == 0) return ::testing::AssertionSuccess();
  double scale = expected.abs().max().item<double>();
  double difference = (actual - expected).abs().max().item<double>();
  if (difference <= std::max(1e-10 * scale, 1e-14)) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "differ by " << difference << " at scale " << scale;
}

namespace {

struct AccumulatedHook : torch::autograd::PostAccumulateGradHook {
  explicit AccumulatedHook(std::function<void(const at::Tensor&)> seen) : seen(std::move(seen)) {}
  void operator()(const at::Tensor& leaf) override { seen(leaf); }
  std::function<void(const at::Tensor&)> seen;
};

}  // namespace

at::Tensor full(double value) { return at::full({3}, value, at::kDouble); }

void onAccumulated(const at::Tensor& leaf, std::function<void(const at::Tensor&)> hook) {
  torch::autograd::impl::set_post_acc_grad_hooks(leaf, std::make_unique<AccumulatedHook>(std::move(hook)));
}

at::Tensor parameter(at::IntArrayRef sizes) { return at::randn(sizes, at::kDouble).requires_grad_(true); }

}  // namespace treadle::autograd

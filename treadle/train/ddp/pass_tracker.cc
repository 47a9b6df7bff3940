#include "treadle/train/ddp/pass_tracker.h"

#include <torch/csrc/autograd/engine.h>

#include <string>
#include <utility>

#include "treadle/core/base/error.h"
#include "treadle/tensor/autograd/plain_backward.h"
#include "treadle/train/ddp/group_use.h"
#include "treadle/train/ddp/operations.h"

namespace treadle::ddp {
namespace {

using Step = PassEvents::Step;

void watchLocalPass(std::weak_ptr<PassEvents> events);

// Owned by a callback of a local pass, which libtorch's GraphTask owns: it is destroyed with the pass, before the
// caller of backward() sees an exception. A pass that a node started is not the end: by then the pass around it is the
// current one on this thread, and is watched next.
class Token {
 public:
  explicit Token(std::weak_ptr<PassEvents> events) : events_(std::move(events)) {}
  ~Token() {
    if (!watches_ || ended_) return;
    try {
      if (torch::autograd::get_current_graph_task_id() >= 0) {
        watchLocalPass(events_);
        return;
      }
    } catch (...) {}  // the pass around it cannot be watched, so it is given up
    if (auto events = events_.lock()) events->passFailed();
  }
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;

  void watch() { watches_ = true; }
  // The local pass has gone well, which may be one within another, whose end is left to the pass around it.
  Step passDone() {
    if (autograd::backwardDepth() > 1) return Step::kLast;
    ended_ = true;  // also if the step throws
    auto events = events_.lock();
    const Step step = events ? events->passEnds() : Step::kLast;
    ended_ = step != Step::kOneOfSeveral;
    return step;
  }
  void passWentWell() {
    if (auto events = events_.lock()) events->passWentWell();
  }

 private:
  std::weak_ptr<PassEvents> events_;
  bool watches_ = false, ended_ = false;
};

// The engine takes new callbacks while it runs them, and runs them last. `token` is a copy: the list that has the
// callback may move it then.
void queueStep(const std::shared_ptr<Token>& owned) {
  torch::autograd::Engine::get_default_engine().queue_callback([owned] {
    const std::shared_ptr<Token> token = owned;
    const Step step = token->passDone();
    if (step == Step::kOneOfSeveral) queueStep(token);
    if (step == Step::kLastOfAverage)
      torch::autograd::Engine::get_default_engine().queue_callback([token] { token->passWentWell(); });
  });
}

void watchLocalPass(std::weak_ptr<PassEvents> events) {
  auto token = std::make_shared<Token>(std::move(events));
  queueStep(token);
  token->watch();
}

// The pass may live on where its context is ended late: on a worker whose program has let go of its modules.
void watchDistributedPass(autograd::Pass& pass, std::weak_ptr<PassEvents> events) {
  pass.onFinish([&pass, events = std::move(events)](const Status& status) {
    auto alive = events.lock();
    if (!alive) return;
    if (!status.ok()) return alive->passFailed();
    const Step step = alive->passEnds();
    if (step == Step::kLastOfAverage)
      pass.onSuccess([events] {
        if (auto owner = events.lock()) owner->passWentWell();
      });
    if (step != Step::kOneOfSeveral) return;
    try {
      watchDistributedPass(pass, events);
    } catch (...) {
      alive->passFailed();
      throw;
    }
  });
}

}  // namespace

void PassTracker::checkMayJoin() const {
  autograd::Pass* distributed = autograd::Pass::current();
  if (role_ == Role::kNone || (distributed == nullptr && autograd::Pass::isInNode())) return;
  // libtorch may run a part of a local pass on threads of its own, which have not called backward().
  const bool isOfOtherThread =
      distributed == nullptr && thread_ != std::this_thread::get_id() && autograd::backwardDepth() > 0;
  if (distributed == distributed_ && !isOfOtherThread) return;
  raise(failedPrecondition(
      "a backward pass reached the parameters of a DistributedDataParallel while another one, local or distributed, is "
      "under way over them: let one end first"));
}

PassTracker::Role PassTracker::join(Role first, const std::weak_ptr<PassEvents>& events) {
  autograd::Pass* distributed = autograd::Pass::current();
  if (distributed == nullptr && autograd::Pass::isInNode()) return Role::kNone;
  checkMayJoin();
  if (role_ != Role::kNone) return role_;
  std::shared_ptr<void> use = first == Role::kAveraged ? takeGroup() : nullptr;
  distributed ? watchDistributedPass(*distributed, events) : watchLocalPass(events);
  groupUse_ = std::move(use);
  role_ = first;
  distributed_ = distributed;
  thread_ = std::this_thread::get_id();
  return role_;
}

std::shared_ptr<void> PassTracker::takeGroup() const try {
  return useGroup(group_);
} catch (const StateError& overlap) {
  if (overlapEndsGroup_) abandonGroup(group_, std::string("has begun overlapping passes (") + overlap.what() + ")");
  throw;
}

PassTracker::Role PassTracker::end() {
  groupUse_.reset();
  distributed_ = nullptr;
  return std::exchange(role_, Role::kNone);
}

}  // namespace treadle::ddp

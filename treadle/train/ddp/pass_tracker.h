#pragma once
// Which backward pass a gradient belongs to, and when that pass ends or fails: a distributed pass, or a local one with
// all local passes that its nodes start (re-entrant checkpointing). One pass at a time, and one averaged pass of all
// that have the group. Owned by a reducer, and used under its lock.

#include <memory>
#include <thread>
#include <utility>

#include "treadle/core/group/group.h"
#include "treadle/tensor/autograd/pass.h"

namespace treadle::ddp {

// Called without locks, on the thread that runs or ends the pass.
class PassEvents {
 public:
  virtual ~PassEvents() = default;
  enum class Step {
    kOneOfSeveral,  // another one is left: it is made when all modules in the pass have made this one
    kLast,
    kLastOfAverage,  // the last one, and passWentWell() is to be called
  };
  // All gradients of the pass have come. Makes the next step of the end. It may wait for what earlier steps begin on
  // other ranks, in whatever order these have the modules. Throwing fails the pass and ends the steps.
  virtual Step passEnds() = 0;
  // Before the first step or between two. Also called from a destructor.
  virtual void passFailed() noexcept = 0;
  // After the last step, if nothing of the pass has failed: no callback that was registered by then, so no other module
  // with as many steps or fewer, and in a distributed pass no worker whose end this one waits for.
  virtual void passWentWell() = 0;
};

class PassTracker {
 public:
  enum class Role {
    kNone,       // no pass is under way
    kAveraged,   // decided by the first gradient of a pass, for all of it
    kLeftAlone,  // not averaged
  };

  // `overlapEndsGroup`: where another pass uses the group, the group is abandoned, as other ranks may have begun this
  // pass and refused that one.
  PassTracker(ProcessGroup group, bool overlapEndsGroup)
      : group_(std::move(group)), overlapEndsGroup_(overlapEndsGroup) {}

  // StateError: a gradient that comes on this thread is of another pass than the one that is under way: one of both is
  // distributed, or both are local and of two threads.
  void checkMayJoin() const;
  // Role of the pass to which the gradient belongs that a hook on this thread reports: kNone for a local pass that a
  // node of a distributed pass starts, whose gradients are that node's affair. If no pass is under way, one begins with
  // the role `first`, and its end will be reported to `events`. StateError: checkMayJoin() throws it, or the group is
  // in use by a pass (group_use.h). So events are those of the pass that is under way, until end() is called for it.
  Role join(Role first, const std::weak_ptr<PassEvents>& events);
  // The pass is over, well or badly.
  Role end();

  Role role() const { return role_; }
  // Null for a local pass.
  autograd::Pass* distributed() const { return distributed_; }

 private:
  std::shared_ptr<void> takeGroup() const;

  const ProcessGroup group_;
  const bool overlapEndsGroup_;
  std::shared_ptr<void> groupUse_;  // by an averaged pass
  Role role_ = Role::kNone;
  autograd::Pass* distributed_ = nullptr;
  std::thread::id thread_;  // that began it
};

}  // namespace treadle::ddp

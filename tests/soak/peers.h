#pragma once
// Which workers a soak may call: all that there are but those that are known to be lost. Which of them may be lost,
// without that being a failure, the driver says before it harms one. Any thread.

#include <map>
#include <set>

#include "tests/soak/handlers.h"
#include "treadle/core/base/mutex.h"

namespace treadle::soak {

class Peers {
 public:
  // Takes in who is new, and who has gone from an open job. Who was lost stays so: a rank is not given out again.
  void meet(const std::vector<WorkerInfo>& all) {
    MutexLock lock(mutex_);
    std::set<std::string> known;
    for (const WorkerInfo& one : all) {
      known.insert(one.name);
      if (!lost_.contains(one.name) && !avoided_.contains(one.name)) present_[one.name] = one.rank;
    }
    for (Ranks* ranks : {&present_, &avoided_})
      for (auto one = ranks->begin(); one != ranks->end();) {
        if (known.contains(one->first)) {
          ++one;
        } else {
          lost_.insert(*one);
          one = ranks->erase(one);
        }
      }
  }

  // This one is about to leave: it is called no more.
  void avoid(const std::string& name) {
    MutexLock lock(mutex_);
    if (auto found = present_.find(name); found != present_.end()) avoided_.insert(present_.extract(found));
  }

  // From now on this one may be lost; "*": any.
  void mayLose(const std::string& name) {
    MutexLock lock(mutex_);
    endangered_.insert(name);
  }
  bool mayBeLost(const std::string& name) const {
    MutexLock lock(mutex_);
    return endangered_.contains(name) || endangered_.contains("*");
  }
  bool anyMayBeLost() const {
    MutexLock lock(mutex_);
    return !endangered_.empty();
  }
  void lost(const std::string& name) {
    MutexLock lock(mutex_);
    for (Ranks* ranks : {&present_, &avoided_})
      if (auto found = ranks->find(name); found != ranks->end()) lost_.insert(ranks->extract(found));
  }

  // Those that are there, in the order of their names.
  std::vector<std::string> names() const {
    MutexLock lock(mutex_);
    std::vector<std::string> names;
    for (const auto& [name, rank] : present_) names.push_back(name);
    return names;
  }
  // One of those that are there, by a number drawn by the caller.
  int any(Number drawn) const { return pick(present_, drawn).value_or(0); }
  std::optional<int> anyLost(Number drawn) const { return pick(lost_, drawn); }
  std::string namesOfLost() const {
    MutexLock lock(mutex_);
    std::string names;
    for (const auto& [name, rank] : lost_) names += (names.empty() ? "" : ",") + name;
    return names.empty() ? "-" : names;
  }

 private:
  using Ranks = std::map<std::string, int>;
  std::optional<int> pick(const Ranks& ranks, Number drawn) const {
    MutexLock lock(mutex_);
    if (ranks.empty()) return {};
    return std::next(ranks.begin(), static_cast<ptrdiff_t>(drawn % ranks.size()))->second;
  }

  mutable Mutex mutex_;
  Ranks present_, avoided_, lost_;  // by name
  std::set<std::string> endangered_ TREADLE_GUARDED_BY(mutex_);
};

}  // namespace treadle::soak

#pragma once
// A small operation, done in one step over the network: every member sends all it has to all others, and each
// combines what came in the order of ranks, so that all get the same bits. Also the barrier, of nothing, and small
// broadcasts, where all but the root send nothing; so an operation ends only when all members agreed that it is one.

#include "treadle/core/group/operation.h"

namespace treadle::group {

class Exchange final : public Operation {
 public:
  explicit Exchange(Setup setup);

  bool large() const override { return false; }

 private:
  void onBegin() override;
  void onStarted(int member, Buffer data) override;
  std::string waitsFor() const override { return "its data has not come"; }
  bool givesData(int member) const;
  void finishIfComplete();
  void reduceAll();

  std::vector<Buffer> given_;  // by rank in the group; in the turn
};

}  // namespace treadle::group

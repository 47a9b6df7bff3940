#pragma once
// An all-to-all with blocks of any sizes among members that agree along the tree, where no start goes to the member
// that knows whether a size is right. So starts have a sum: a member adds a hash of each size that it sends, and
// subtracts one of each that it expects. The sum of all members is 0 where all sizes agree, and by chance with a
// probability of 2^-64 where they do not. Rank 0 sees it, and its start says whether they agree. If not, each member
// sends each receiver the size of its block; the receiver that expects another one reports both.

#include <vector>

#include "treadle/core/group/plan_operation.h"

namespace treadle::group {

class AllToAllVOperation final : public PlanOperation {
 public:
  AllToAllVOperation(Setup setup, Plan plan);

 private:
  void onBegin() override;
  void onStarted(int member, uint64_t elements, Buffer data) override;
  void onShare(int member, uint64_t elements, Buffer data) override;
  uint64_t elementsTo(int member) const override;
  void advance() override;
  std::string waitsFor() const override;

  void compare();

  // In the turn.
  uint64_t sum_ = 0;      // of this member, once it has begun, and of those below it that have started
  bool differs_ = false;  // as rank 0 says
  bool compared_ = false;
  std::vector<bool> shared_;  // by rank: its size has come
};

}  // namespace treadle::group

#pragma once
// An all-to-all with blocks of any sizes, of which a member knows its own alone. All must know whether all sizes agree,
// before anybody can end well. So each member has a sum: it adds a hash of each size that it sends, and subtracts one
// of each that it expects. The sum of all members is 0 where all sizes agree, and by chance with a probability of
// 2^-64 where they do not. Starts from all to all have the sender's sum. Along the tree they have the sum of the
// sender and those below it on the way up, and on the way down the word of rank 0 whether the sizes agree. If not, each
// member sends each receiver the size of its block; the receiver that expects another one reports both.

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

  bool isInTree() const { return agreement().kind() == Agreement::Kind::kTree; }
  void compare();

  // In the turn.
  uint64_t own_ = 0;      // sum of this member, once it has begun
  uint64_t others_ = 0;   // sums in the starts that have come; in the tree: from below
  bool differs_ = false;  // in the tree: as rank 0 says
  bool compared_ = false;
  std::vector<bool> shared_;  // by rank: its size has come
};

}  // namespace treadle::group

#pragma once
// A sparse all-reduce among more than 16 members. Starts go along the tree (agreement.h), and rows with them while they
// are small (GroupOptions::smallBytes): each member adds its own to those of its children and sends them up, rank 0 has
// the sums of all, and they come down. So a small one costs each member at most log2 n messages.
//
// Rows that are too many at any member are not sent on: its start says so, and so do all above it and those that come
// down. Then all members have begun, and deal their rows as SparseOperation does, with shares in place of starts.
// Nobody knows before which of the two it is.

#include "treadle/core/group/sparse_operation.h"

namespace treadle::group {

class SparseTreeOperation final : public SparseOperation {
 public:
  SparseTreeOperation(Setup setup, SparseData data);

 private:
  void onBegin() override { goOn(); }
  void onStarted(int member, uint64_t rows, Buffer data) override;
  void onShare(int member, uint64_t rows, Buffer data) override;
  void onFinished() override;
  Buffer dataWithStart(int member) override;
  uint64_t elementsTo(int member) const override;

  // What can be done when a start has come, or this member has begun.
  void goOn();
  // Adds this member's rows and those of its children. False when the operation has ended.
  bool add();
  void dealAfterAll();
  bool hasAllChildren() const;

  const RowRanges all_;  // one range
  // In the turn.
  std::vector<RowBlock> blocks_;  // this member's, and its children's in their order
  RowBlock sums_;                 // of this member and all below it; once they have come, of all members
  bool fits_;                     // so far
  bool added_ = false;
  std::vector<bool> dealing_;  // by rank: whose shares have been announced
};

}  // namespace treadle::group

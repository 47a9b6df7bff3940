#pragma once
// One sparse all-reduce on this worker. Each member combines the rows of one range. It gets the others' rows of its
// range, adds them by rank, and sends the sums to all others:
//
//   start   says how many rows the sender has in the receiver's range
//   result  says how many rows the sender has combined, when it has those of all
//
// A block of rows travels with its message when it is small (GroupOptions::smallBytes), or else in chunks after it. The
// sizes in both messages extend the plan: no member knows what the others have, and no operation is needed to ask.

#include "treadle/core/group/chunked_operation.h"
#include "treadle/core/group/row_sums.h"
#include "treadle/core/group/sparse.h"

namespace treadle::group {

// The data of a call.
struct SparseData {
  RowType type;
  RowRanges ranges;
  std::vector<RowBlock> own;  // packRows of this member's rows
  RowSums& sums;              // the caller's
};

class SparseOperation final : public ChunkedOperation {
 public:
  SparseOperation(Setup setup, SparseData data);

  // Its work depends on the rows of the others. So it takes one of the group's two places for large ones.
  bool large() const override { return true; }

 private:
  void onBegin() override;
  void onStarted(int member, uint64_t rows, Buffer data) override;
  void onResult(int member, uint64_t rows, Buffer data) override;
  void onArrived(size_t channel, const Chunk& chunk, Buffer data) override;
  void onFinished() override;
  Buffer dataWithStart(int member) override;
  uint64_t elementsTo(int member) const override;
  Bytes chunkFor(int member, const Place& from, const Chunk& chunk) const override;
  std::string waitsForOther() const override;
  void advance() override;

  // Blocks that come from a member: the rows for this member's range (kScratch) and the sums of its own (kOutput).
  RowBlock& incoming(Area area, int member);
  void expect(Area area, int member, const RowLayout& layout, Buffer data);
  // False when the memory for the block cannot be had, which fails the operation.
  bool store(RowBlock& block, uint64_t begin, Bytes data);
  void complete(Area area, int member);
  bool combine();
  void sendResults();
  // Frees own rows that have been sent.
  void freeSent();
  bool isSmall(const RowLayout& layout) const { return layout.sizeBytes() <= description().smallBytes; }
  uint64_t rangeOf(int member) const { return data_.ranges.count(member); }

  SparseData data_;
  // In the turn. By rank.
  std::vector<RowBlock> shares_, sums_;
  std::vector<bool> announced_;  // results
  int missingShares_, missingSums_;
  bool combined_ = false;
};

}  // namespace treadle::group

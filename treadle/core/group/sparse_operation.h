#pragma once
// One sparse all-reduce on this worker. Each member combines the rows of one range. It gets the others' rows of its
// range, adds them by rank, and sends the sums to all others:
//
//   start   says how many rows the sender has in the receiver's range (a share, where starts go along the tree)
//   result  says how many rows the sender has combined, when it has those of all
//
// A block of rows travels with its message when it is small (GroupOptions::smallBytes), or else in chunks after it. The
// sizes in both messages extend the plan: no member knows what the others have, and no operation is needed to ask.

#include <optional>

#include "treadle/core/group/chunked_operation.h"
#include "treadle/core/group/row_sums.h"
#include "treadle/core/group/sparse.h"

namespace treadle::group {

// The data of a call.
struct SparseData {
  RowType type;
  RowRanges ranges;
  std::vector<RowBlock> own;      // by rank: packRows of this member's rows
  std::optional<RowBlock> whole;  // the same rows in one range, where small ones go along the tree and these are small
  RowSums& sums;                  // the caller's
};

class SparseOperation : public ChunkedOperation {
 public:
  SparseOperation(Setup setup, SparseData data);

  // Its work depends on the rows of the others. So it takes one of the group's two places for large ones.
  bool large() const override { return true; }

 protected:
  // The blocks of this member's rows are there, and all may know that it has begun.
  void deal();
  bool dealt() const { return dealt_; }
  // What this member has in the range of another one; the rows themselves only where they are small.
  uint64_t rowsFor(int member) const;
  Buffer smallRowsFor(int member) const;
  // A member has so many rows in this member's range.
  void expectShare(int member, uint64_t rows, Buffer data);
  // A small block of a member, which comes whole. False when the operation has ended.
  bool take(RowBlock& block, int member, const RowLayout& layout, const Buffer& data);
  // No memory for rows, which fails the operation.
  void finishWithoutMemory(const std::string& rows);

  void onStarted(int member, uint64_t rows, Buffer data) override { expectShare(member, rows, std::move(data)); }
  void onFinished() override;
  Buffer dataWithStart(int member) override { return smallRowsFor(member); }
  uint64_t elementsTo(int member) const override { return rowsFor(member); }
  void advance() override;

  bool isSmall(const RowLayout& layout) const { return layout.sizeBytes() <= description().smallBytes; }
  // What sums are divided by.
  int divisor() const { return description().reduceOp == ReduceOp::kAverage ? link().size() : 1; }
  SparseData& data() { return data_; }
  const SparseData& data() const { return data_; }

 private:
  void onBegin() override;
  void onResult(int member, uint64_t rows, Buffer data) override;
  void onArrived(size_t channel, const Chunk& chunk, Buffer data) override;
  Bytes chunkFor(int member, const Place& from, const Chunk& chunk) const override;
  std::string waitsForOther() const override;

  // Blocks that come from a member: the rows for this member's range (kScratch) and the sums of its own (kOutput).
  RowBlock& incoming(Area area, int member);
  void expect(Area area, int member, const RowLayout& layout, Buffer data);
  // False when the operation has ended: the memory for the block cannot be had.
  bool store(RowBlock& block, uint64_t begin, Bytes data);
  // The block of a member has come.
  void count(Area area);
  // Both are false when the operation has ended: the member did what no member does.
  bool checkSize(int member, const RowLayout& layout, const Buffer& data);
  bool checkRows(const RowBlock& block, int member);
  bool combine();
  void sendResults();
  // Frees own rows that have been sent.
  void freeSent();
  uint64_t rangeOf(int member) const { return data_.ranges.count(member); }

  SparseData data_;
  // In the turn. By rank.
  std::vector<RowBlock> shares_, sums_;
  std::vector<bool> announced_;      // results
  int missingShares_, missingSums_;  // this member's share too, until it is dealt
  bool dealt_ = false, combined_ = false;
};

}  // namespace treadle::group

#pragma once
// Which member adds which rows of sparse data. The rows are dealt to the members in turn, in runs of consecutive ones:
// rows that crowd together, such as the frequent words of a vocabulary, are spread over all members. The rows of one
// member, upwards, are its range; a row has an offset there. Pure values.

#include <algorithm>
#include <cstdint>

namespace treadle::group {

class RowRanges {
 public:
  // So long that dense rows are copied and added in long pieces, and so short that a few thousand crowded rows have
  // many owners.
  static constexpr uint64_t kMostRunRows = 256;
  // At least so many runs for each member, where there are as many rows: members differ by one run at most.
  static constexpr uint64_t kRunsPerMember = 16;

  RowRanges(uint64_t rows, int members)
      : rows_(rows),
        members_(static_cast<uint64_t>(members)),
        runRows_(std::clamp<uint64_t>(rows / (kRunsPerMember * members_), 1, kMostRunRows)) {}

  int members() const { return static_cast<int>(members_); }
  uint64_t rows() const { return rows_; }
  uint64_t runRows() const { return runRows_; }

  // Rows in the range of a member.
  uint64_t count(int member) const {
    const uint64_t runs = rows_ / runRows_, owner = static_cast<uint64_t>(member), extra = runs % members_;
    const uint64_t whole = runs / members_ + (owner < extra ? 1 : 0);
    return whole * runRows_ + (owner == extra ? rows_ % runRows_ : 0);
  }
  int ownerOf(uint64_t row) const { return static_cast<int>(row / runRows_ % members_); }
  uint64_t offsetOf(uint64_t row) const { return row / runRows_ / members_ * runRows_ + row % runRows_; }
  uint64_t rowAt(int member, uint64_t offset) const {
    return (offset / runRows_ * members_ + static_cast<uint64_t>(member)) * runRows_ + offset % runRows_;
  }

 private:
  uint64_t rows_, members_, runRows_;
};

}  // namespace treadle::group

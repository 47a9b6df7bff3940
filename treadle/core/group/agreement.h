#pragma once
// How the members find out that all of them have begun the same operation. Each sends its start, which describes the
// operation, to some others; the receiver of a start compares. Pure logic; one thread at a time.
//
// * From all to all: one step, n-1 messages per member.
// * Along the binomial tree: a start goes up when those of all children are there, and down when that of the parent is
//   there. So the parent's says that all have begun. At most log2 n messages per member (rounded up), 2 log2 n steps.

#include <cstddef>
#include <vector>

namespace treadle::group {

class Agreement {
 public:
  enum class Kind { kAllToAll, kTree };

  Agreement(Kind kind, int size, int self);

  // This member has begun the operation.
  void begin() { begun_ = true; }
  // The start of `member` has come, and describes the same operation. False when no member sends it.
  bool hear(int member);
  // The members to which this one's start is to go now. Each is yielded once.
  std::vector<int> due();

  Kind kind() const { return kind_; }
  bool heard(int member) const { return heard_[static_cast<size_t>(member)]; }
  // All have begun the operation.
  bool agreed() const;
  // The members whose starts are to come next.
  std::vector<int> awaited() const;
  // The member may know that this one has begun, and that it has itself is known: data may come from it.
  bool takesDataFrom(int member) const { return heard(member) || (kind_ == Kind::kTree && sentUp_); }
  // The member has begun the operation, so it has memory for data.
  bool sendsDataTo(int member) const { return agreed() || heard(member); }

 private:
  const Kind kind_;
  const int size_, self_;
  std::vector<bool> heard_;  // by rank
  int missing_;              // members whose starts have not come; in the tree: children
  bool begun_ = false, sentUp_ = false;
  bool sentToRest_ = false;  // from all to all: to everybody; in the tree: to the children
};

}  // namespace treadle::group

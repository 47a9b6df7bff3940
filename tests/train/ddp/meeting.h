#pragma once
// Where the ranks of a test wait for each other.

#include "tests/support/gate.h"

namespace treadle::test::ddp_test {

// Where all ranks have ended what is before it. A rank that is lost, or ends the group, waits there: others may still
// be in a pass that it has ended already.
class Meeting {
 public:
  explicit Meeting(int ranks) : ranks_(ranks) {}
  void come() {
    come_.add();
    come_.waitFor(ranks_);
  }

 private:
  const int ranks_;
  Counter come_;
};

}  // namespace treadle::test::ddp_test

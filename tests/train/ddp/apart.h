#pragma once
// What ranks do that have had different numbers of averages.

#include "tests/support/expect_error.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::ddp_test {

// A pass has failed on the rank called `behind` alone, so the next one fails on all, which go on with another group.
template <class M, class Pass>
void expectApartAndRebind(DistributedDataParallel<M>& ddp, Worker& worker, const std::string& behind, Pass pass) {
  EXPECT_EQ(ddp.state().condition, DdpCondition::kUsable) << "nothing was sent since";
  const Status why = statusOf<StateError>(pass);
  EXPECT_EQ(why.worker(), behind);
  EXPECT_TRUE(contains(why.message(), "worker '" + behind + "' (rank ")) << why.message();
  EXPECT_EQ(ddp.state().condition, DdpCondition::kApart);
  EXPECT_TRUE(contains(why.message(), ddp.state().reason)) << ddp.state().reason;
  EXPECT_FALSE(ddp.rebind(ProcessGroup::make(worker, ddp.group().members()))) << "one has made a step alone";
  EXPECT_EQ(ddp.state().condition, DdpCondition::kUsable);
}

}  // namespace treadle::test::ddp_test

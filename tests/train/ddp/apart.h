#pragma once
// Passes that fail late on one rank, and what ranks do that have had different numbers of averages.

#include <torch/csrc/autograd/engine.h>

#include <stdexcept>

#include "tests/support/expect_error.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::ddp_test {

// Within a backward pass: a callback at its end throws, after so many rounds of callbacks. A DistributedDataParallel
// makes one step of its end in each: after the first its channel has gone, and after the third the averages are put.
inline void throwAfter(int rounds) {
  torch::autograd::Engine::get_default_engine().queue_callback([rounds] {
    if (rounds == 1) throw std::runtime_error("another callback");
    throwAfter(rounds - 1);
  });
}

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

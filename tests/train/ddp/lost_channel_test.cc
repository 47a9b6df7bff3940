// A rank that does not get the exact channel of a pass cannot know which operations the others begin next: buffers,
// buckets again, other buckets. So the group fails on all ranks, for all that use it.

#include "tests/support/expect_error.h"
#include "tests/support/gate.h"
#include "tests/train/ddp/net.h"

namespace treadle::test::lost_channel_test {
namespace {

using namespace ddp_test;

class LostChannel : public ::testing::TestWithParam<Buffers> {
 protected:
  static DdpOptions options() {
    DdpOptions options = smallBuckets();
    options.buffers = GetParam();
    return options;
  }

  // Rank 1 sends its channel when rank 0's time limit is over.
  void answerTooLate(const ProcessGroup& group) {
    Net net(0);
    ddp::startReplicas(*net, group, options());
    const std::vector<at::Tensor> parameters = net->parameters();
    const ddp::BucketPlan plan(parameters, ddp::reverseOrder(parameters.size()), options().buckets);
    size_t sent = 0;
    try {
      answerPass(group, parameters, options(), [&] {
        if (++sent == plan.buckets().size()) isOver_.wait();
      });
    } catch (const Error&) {}  // rank 0 has given up, which this rank may know by then or not
    expectEnd(group);
  }

  // For other users of the group too, and before any time limit.
  static void expectEnd(const ProcessGroup& group) {
    const std::string why =
        messageOf<StateError>([&] { barrier(group.withTimeout(kNoTimeout)).wait(std::chrono::seconds(60)); });
    EXPECT_TRUE(contains(why, "'rank0' (rank 0) could not end an averaged backward pass (")) << why;
    EXPECT_TRUE(contains(why, "make a new group and call rebind() of DistributedDataParallel with it")) << why;
  }

  void loseChannel(const ProcessGroup& group) {
    Net net(0);
    DistributedDataParallel<Net> ddp(net, group, options());
    auto pass = [&](int step) { ddp.forward(inputOf(0, step), false).square().mean().backward(); };
    EXPECT_THROW(pass(0), TimeoutError);
    isOver_.open();
    expectEnd(group);
    for (int step = 1; step < 3; ++step)
      EXPECT_TRUE(contains(messageOf<StateError>([&] { pass(step); }), "make a new group"));
    EXPECT_THROW(ddp.skipPass(), StateError);
    EXPECT_THROW(ddp.agreeToSkip(false), StateError);
    EXPECT_THROW(ddp.verifyReplicas(), StateError);
    auto unaveraged = ddp.noSync();
    pass(3);
  }

  Gate isOver_;
};

TEST_P(LostChannel, IsTheEndOfItsGroup) {
  TensorJob job(ranks(2));
  Net alone(0);
  alone->forward(at::cat({inputOf(0, 0), inputOf(1, 0)}), false).square().mean().backward();
  job.onAll([&](Worker& worker) {
    const int rank = worker.self().rank;
    const ProcessGroup group = ProcessGroup::make(worker, job.names(), {.timeout = std::chrono::seconds(2)});
    rank == 0 ? loseChannel(group) : answerTooLate(group);
    Net net(0);
    DistributedDataParallel<Net> ddp(net, ProcessGroup::make(worker, job.names()), options());
    ddp.forward(inputOf(rank, 0), false).square().mean().backward();
    EXPECT_TRUE(close(net->first.grad(), alone->first.grad()));
  });
}

INSTANTIATE_TEST_SUITE_P(Modes, LostChannel, ::testing::Values(Buffers::kOnce, Buffers::kAverage),
                         [](const auto& info) { return ddp::nameOf(info.param); });

}  // namespace
}  // namespace treadle::test::lost_channel_test

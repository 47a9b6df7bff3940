// Worker::channelsTo: what is in use between two workers, and the sentence on what is not; and workers of one job that
// were told different things.

#include "tests/core/worker/bulk.h"
#include "tests/support/worker_job.h"

namespace treadle::channels_to_test {
namespace {

using test::Bulk;
using test::contains;
using test::WorkerJob;

size_t sizeOf(const Bulk& large) { return large.buffer.sizeBytes; }
Bulk another() { return {}; }
void settle() {}

const Functions& functions() {
  static const Functions all = Functions().add<&sizeOf>("sizeOf").add<&another>("another").add<&settle>("settle");
  return all;
}

WorkerJob jobWith(const Channels& a, const Channels& b) {
  return WorkerJob({"A", "B"}, functions(),
                   [&](JoinOptions& options) { options.channels = options.name == "A" ? a : b; });
}

void expectNot(const ChannelUse& channel, const std::string& why) {
  EXPECT_FALSE(channel.inUse);
  EXPECT_TRUE(contains(channel.why, why)) << "'" << channel.why << "' is without '" << why << "'";
}

TEST(ChannelsTo, sayWhatIsInUse) {
  WorkerJob job({"A", "B"}, functions());
  job[0].call<&settle>("B");  // its answer stands behind the answer to the offer of memory
  EXPECT_EQ(size_t{1} << 20, job[0].call<&sizeOf>("B", Bulk()));
  PeerChannels use = job[0].channelsTo("B");
  EXPECT_TRUE(use.unixSockets.inUse && use.sharedMemory.inUse);
  EXPECT_EQ("", use.unixSockets.why + use.sharedMemory.why);
  EXPECT_EQ(size_t{1} << 20, use.sharedMemory.sentBytes);
  expectNot(use.tcp, "not needed");
  expectNot(use.lanes, "none were needed so far");
  expectNot(use.crossMemory, "not needed: memory is shared");
  EXPECT_EQ(0u, job[1].channelsTo("A").sharedMemory.sentBytes) << "nothing was sent the other way";
  EXPECT_THROW((void)job[0].channelsTo("C"), NotFoundError);
}

TEST(ChannelsTo, sayWhatThisWorkerWasToldNotToUse) {
  WorkerJob job = jobWith({.unixSockets = false, .tcp = true, .lanes = false, .sharedMemory = false}, {});
  EXPECT_EQ(size_t{1} << 20, job[0].call<&sizeOf>("B", Bulk()));
  PeerChannels use = job[0].channelsTo("B");
  EXPECT_TRUE(use.tcp.inUse);
  EXPECT_EQ(size_t{1} << 20, use.tcp.sentBytes);
  for (const auto& [channel, name] :
       {std::pair(use.unixSockets, "unix"), std::pair(use.lanes, "lanes"), std::pair(use.sharedMemory, "shm")})
    expectNot(channel, std::string("told not to: JoinOptions::channels is without ") + name);
  expectNot(job[1].channelsTo("A").unixSockets, "the peer listens on no UNIX socket");
  expectNot(job[1].channelsTo("A").sharedMemory, "UNIX sockets only");
}

TEST(ChannelsTo, sayWhatThePeerDoesNotTake) {
  WorkerJob job = jobWith({}, {.sharedMemory = false, .crossMemory = false});
  EXPECT_EQ(size_t{1} << 20, job[0].call<&sizeOf>("B", Bulk()));
  expectNot(job[0].channelsTo("B").sharedMemory,
            "the peer does not take it: shared memory is not among the channels that it may use");
  EXPECT_TRUE(job[0].channelsTo("B").lanes.inUse);
}

// Arguments of a caller that waits are read where they are; what it does not wait for goes another way.
TEST(ChannelsTo, sayThatACallersMemoryIsReadWhereNoneIsShared) {
  Channels noSharing{.sharedMemory = false};
  WorkerJob job = jobWith(noSharing, noSharing);
  job[0].call<&settle>("B");  // its answer stands behind the answer to the offer
  EXPECT_EQ(size_t{1} << 20, job[0].call<&sizeOf>("B", Bulk()));
  PeerChannels use = job[0].channelsTo("B");
  EXPECT_TRUE(use.crossMemory.inUse) << use.crossMemory.why;
  EXPECT_EQ(size_t{1} << 20, use.crossMemory.sentBytes);
  EXPECT_EQ(size_t{1} << 20, job[0].async<&sizeOf>("B", Bulk()).wait());
  EXPECT_EQ(size_t{1} << 20, job[0].channelsTo("B").crossMemory.sentBytes);
}

TEST(ChannelsTo, sayWhoDoesNotReadOthersMemory) {
  WorkerJob job = jobWith({.sharedMemory = false}, {.sharedMemory = false, .crossMemory = false});
  job[0].call<&settle>("B");
  EXPECT_EQ(size_t{1} << 20, job[0].call<&sizeOf>("B", Bulk()));
  expectNot(job[0].channelsTo("B").crossMemory, "the peer cannot read it: reading memory is not among the channels");
  expectNot(job[1].channelsTo("A").crossMemory, "told not to: JoinOptions::channels is without cma");
  EXPECT_TRUE(job[0].channelsTo("B").lanes.inUse);
}

// The lane was closed after its welcome once, and with it the connection.
TEST(ChannelsTo, aPeerWithoutLanesGetsBulkTensorsBesideSmallMessages) {
  WorkerJob job = jobWith({.unixSockets = false, .tcp = true, .lanes = true, .sharedMemory = false},
                          {.unixSockets = false, .tcp = true, .lanes = false, .sharedMemory = false});
  EXPECT_EQ(size_t{1} << 20, job[0].call<&sizeOf>("B", Bulk()));
  EXPECT_EQ(size_t{1} << 20, job[1].call<&another>("A").buffer.sizeBytes);
  expectNot(job[0].channelsTo("B").lanes, "told to use no lanes");
  EXPECT_TRUE(job[0].channelsTo("B").tcp.sentBytes >= size_t{1} << 20);
}

TEST(ChannelsTo, throwsForALostPeer) {
  WorkerJob job({"A", "B"}, functions());
  job.kill(1);
  EXPECT_THROW(job[0].barrier(), PeerLostError);
  EXPECT_THROW((void)job[0].channelsTo("B"), PeerLostError);
}

}  // namespace
}  // namespace treadle::channels_to_test

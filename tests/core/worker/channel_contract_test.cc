// What workers promise whatever ways the bytes of large values take between them: one suite over the channels of a job,
// with both workers in this process and with the callee in a process of its own.

#include <gtest/gtest.h>

#include <thread>

#include "tests/core/worker/here.h"
#include "tests/core/worker/peer_process.h"
#include "tests/support/bytes.h"

namespace treadle::channel_contract_test {
namespace {

using test::Bulk;
using test::bulkOf;

constexpr size_t kMiB = 1U << 20;

struct Way {
  const char* name;
  const char* channels;              // as in TREADLE_CHANNELS
  ChannelUse PeerChannels::* takes;  // what large arguments of a blocking call go by
  bool across = false;               // processes
  TlsUse tls = TlsUse::kBeyondLoopback;
};

std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

std::vector<Way> ways() {
  const std::vector<Way> all = {{"Tcp", "tcp", &PeerChannels::tcp},
                                {"LanesOverTcp", "tcp,lanes", &PeerChannels::lanes},
                                {"Tls", "tcp", &PeerChannels::tcp, false, TlsUse::kAlways},
                                {"LanesOverTls", "tcp,lanes", &PeerChannels::lanes, false, TlsUse::kAlways},
                                {"Unix", "unix", &PeerChannels::unixSockets},
                                {"LanesOverUnix", "unix,lanes", &PeerChannels::lanes},
                                {"SharedMemory", "unix,lanes,shm", &PeerChannels::sharedMemory},
                                {"CrossMemory", "unix,lanes,cma", &PeerChannels::crossMemory}};
  std::vector<Way> both = all;
  for (Way way : all) {
    way.across = true;
    both.push_back(way);
  }
  return both;
}

// A caller, and the worker "child".
class JobOfTwo {
 public:
  explicit JobOfTwo(const Way& way) {
    const Channels channels = valueOrThrow(Channels::parse(way.channels));
    if (way.across) {
      startProcess(way, channels);
    } else {
      within_.emplace(std::vector<std::string>{"parent", "child"}, test::peerFunctions(), [&](JoinOptions& options) {
        options.channels = channels;
        options.tls = way.tls;
      });
    }
  }
  ~JobOfTwo() {
    if (worker_ && !killed_) worker_->shutdown({.timeout = test::kHangs});
  }

  Worker& caller() { return worker_ ? *worker_ : (*within_)[0]; }
  void killChild() {
    killed_ = true;
    if (child_) child_->signal(SIGKILL);
    if (within_) within_->kill(1);
  }

 private:
  void startProcess(const Way& way, const Channels& channels) {
    uint16_t port = test::freePort();
    const std::string tls = way.tls == TlsUse::kAlways ? "always" : "auto";
    child_.emplace(test::startPeer(port, {{"TREADLE_CHANNELS", way.channels}, {"TREADLE_TLS", tls}}));
    JoinOptions join = test::joinOptions("parent", 0, 2, port, test::peerFunctions());
    join.channels = channels;
    join.tls = way.tls;
    worker_ = Worker::join(join);
  }

  std::optional<test::WorkerJob> within_;
  std::optional<io::Process> child_;
  std::shared_ptr<Worker> worker_;
  bool killed_ = false;
};

class WorkerChannels : public ::testing::TestWithParam<Way> {
 protected:
  // From the first answer on both sides know what they share.
  WorkerChannels() { caller.call<&test::peerAdd>("child", 1, 2); }
  void SetUp() override {
    ChannelUse memory = caller.channelsTo("child").crossMemory;
    if (GetParam().takes == &PeerChannels::crossMemory && !memory.inUse) GTEST_SKIP() << memory.why;
  }

  JobOfTwo job{GetParam()};
  Worker& caller = job.caller();
};

TEST_P(WorkerChannels, carryValuesOfEverySizeThereAndBackByTheirWay) {
  test::Random random(1);
  for (size_t size : {size_t{0}, size_t{1}, size_t{4095}, size_t{16} << 10, (size_t{16} << 10) + 1, size_t{256} << 10,
                      kMiB + 7, 5 * kMiB}) {
    Bulk bulk{allocateBuffer(size)};
    test::fillRandomly(random, {bulk.buffer.data, size});
    Bulk back = caller.call<&test::peerEcho>("child", bulk);
    ASSERT_EQ(size, back.buffer.sizeBytes);
    EXPECT_TRUE(test::same(back.buffer.bytes(), bulk.buffer.bytes())) << size;
  }
  PeerChannels channels = caller.channelsTo("child");
  EXPECT_LE(5 * kMiB, (channels.*GetParam().takes).sentBytes);
}

TEST_P(WorkerChannels, captureWhatWasThereWhenTheCallReturned) {
  Bulk bulk = bulkOf(3 * kMiB, 1);
  for (int round = 0; round < 20; ++round) {
    std::fill_n(bulk.buffer.data, bulk.buffer.sizeBytes, std::byte{1});
    Bulk borrowed{Buffer::borrow(bulk.buffer.data, bulk.buffer.sizeBytes)};
    Future<int64_t> sum = caller.async<&test::peerSum>("child", borrowed);
    std::fill_n(bulk.buffer.data, bulk.buffer.sizeBytes, std::byte{99});
    EXPECT_EQ(3 * static_cast<int64_t>(kMiB), sum.wait());
  }
}

TEST_P(WorkerChannels, keepTheOrderOfManyBuffers) {
  test::forSeeds(20, [&](test::Random& random) {
    std::vector<Bulk> bulks;
    std::vector<int64_t> sums;
    for (uint64_t i = 0; i < 1 + test::pick(random, 12); ++i) {
      size_t size = 1 + test::pick(random, test::pick(random, 2) == 0 ? 100 : 2 * kMiB);
      bulks.push_back(bulkOf(size, static_cast<unsigned>(i + 1)));
      sums.push_back(static_cast<int64_t>(size * (i + 1)));
    }
    EXPECT_EQ(sums, caller.call<&test::peerSums>("child", bulks));
  });
}

TEST_P(WorkerChannels, serveSeveralCallersAtOnce) {
  std::vector<std::thread> threads;
  for (unsigned id = 1; id <= 3; ++id)
    threads.emplace_back([&, id] {
      test::Random random(id);
      for (int round = 0; round < 20; ++round) {
        size_t size = 1 + test::pick(random, 2 * kMiB);
        EXPECT_EQ(static_cast<int64_t>(size * id), caller.call<&test::peerSum>("child", bulkOf(size, id)));
      }
    });
  for (std::thread& thread : threads) thread.join();
}

TEST_P(WorkerChannels, refuseWhatNobodyOffersAndGoOn) {
  for (int i = 0; i < 5; ++i) {
    Status why =
        test::statusOf<NotFoundError>([&] { caller.callNamed<int64_t>("child", "missing", bulkOf(3 * kMiB, 1)); });
    EXPECT_TRUE(test::contains(why.message(), "missing"));
  }
  EXPECT_EQ(static_cast<int64_t>(kMiB), caller.call<&test::peerSum>("child", bulkOf(kMiB, 1)));
}

TEST_P(WorkerChannels, tellOfAPeerThatIsKilledUnderALoad) {
  std::atomic<int> answered = 0;
  std::vector<std::thread> threads;
  for (unsigned id = 1; id <= 3; ++id)
    threads.emplace_back([&, id] {
      Status why = test::statusOf<PeerLostError>([&] {
        for (Bulk bulk = bulkOf(2 * kMiB, id);; ++answered) caller.call<&test::peerEcho>("child", bulk);
      });
      EXPECT_EQ("child", why.worker());
    });
  EXPECT_TRUE(test::eventually([&] { return answered > 10; }));
  job.killChild();
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(All, WorkerChannels, ::testing::ValuesIn(ways()), [](const auto& info) {
  return std::string(info.param.name) + (info.param.across ? "AcrossProcesses" : "");
});

}  // namespace
}  // namespace treadle::channel_contract_test

// Options that other tests of this folder only set: what each of them changes, and what it must not.

#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/core/worker/here.h"
#include "tests/support/sanitizer.h"
#include "treadle/core/group/options.h"

namespace treadle::options_test {
namespace {

using namespace std::chrono_literals;
using test::contains;
using test::Counter;
using test::Gate;
using test::Here;
using test::messageOf;
using test::WorkerJob;

struct Counted {
  explicit Counted(int begin) : number(begin) {}
  int next() { return ++number; }
  int number;
};

std::string twice(const std::string& text) { return text + text; }
void note(Here<Counter> counter) { counter->add(); }

Functions offered() {
  Functions all;
  all.add<&twice>("twice").add<&note>("note").addType<Counted, int>("Counted").add<&Counted::next>("next");
  return all;
}

TEST(Options, areCheckedBeforeTheyAreUsed) {
  JoinOptions options = test::joinOptions("a", 0, 1, 1);
  EXPECT_TRUE(options.validate().ok());
  options.heartbeatTimeout = 25h;
  EXPECT_EQ(Code::kInvalidArgument, options.validate().code());
  EXPECT_TRUE(contains(options.validate().message(), "heartbeatTimeout"));
  options = test::joinOptions("a", 0, 1, 1);
  options.messageLimits.bufferBytes = UINT64_MAX;
  EXPECT_TRUE(contains(options.validate().message(), "messageLimits.bufferBytes"));
  options = test::joinOptions("a", 0, 1, 1);
  options.channels = Channels{false, false, true, true, true};
  EXPECT_TRUE(contains(options.validate().message(), "channels"));
}

TEST(Options, ofAGroupAreCheckedBeforeTheyAreUsed) {
  group::GroupOptions options;
  EXPECT_TRUE(options.validate().ok());
  options.timeout = Duration::zero();
  EXPECT_TRUE(contains(options.validate().message(), "timeout"));
}

TEST(Options, takeTheChannelsOfTheEnvironment) {
  JoinOptions options = test::joinOptions("a", 0, 1, 1);
  ::setenv("TREADLE_CHANNELS", "tcp,lanes", 1);
  Result<Channels> channels = options.channelsToUse();
  ASSERT_TRUE(channels.ok());
  EXPECT_TRUE(channels->tcp && channels->lanes && !channels->unixSockets && !channels->sharedMemory);
  ::setenv("TREADLE_CHANNELS", "pigeons", 1);
  EXPECT_TRUE(contains(options.channelsToUse().status().message(), "TREADLE_CHANNELS"));
  EXPECT_TRUE(contains(options.validate().message(), "pigeons"));
  options.channels = Channels();  // what the program says counts
  EXPECT_TRUE(options.channelsToUse()->unixSockets);
  ::unsetenv("TREADLE_CHANNELS");
}

TEST(Options, takeTheUseOfTlsAndTheCertificatesOfTheEnvironment) {
  JoinOptions options = test::joinOptions("a", 0, 1, 1);
  EXPECT_EQ(TlsUse::kBeyondLoopback, *options.tlsToUse());
  EXPECT_FALSE(options.certificatesToUse());
  ::setenv("TREADLE_TLS", "always", 1);
  EXPECT_EQ(TlsUse::kAlways, *options.tlsToUse());
  ::setenv("TREADLE_TLS", "perhaps", 1);
  EXPECT_TRUE(contains(options.validate().message(), "TREADLE_TLS is 'perhaps'"));
  options.tls = TlsUse::kBeyondLoopback;  // what the program says counts
  EXPECT_EQ(TlsUse::kBeyondLoopback, *options.tlsToUse());
  ::unsetenv("TREADLE_TLS");
  ::setenv("TREADLE_TLS_CERTIFICATE", "/some/where.pem", 1);
  EXPECT_EQ("/some/where.pem", options.certificatesToUse()->certificate);
  options.certificates = Certificates{"/else/where.pem", "", ""};
  EXPECT_EQ("/else/where.pem", options.certificatesToUse()->certificate);
  ::unsetenv("TREADLE_TLS_CERTIFICATE");
}

TEST(Options, ofAQueueLimitHoldBackNothingThatFits) {
  WorkerJob job({"a", "b"}, offered(), [](JoinOptions& options) { options.maxQueuedBytes = 4096; });
  const std::string small(100, 's'), large(3 << 20, 'l');  // over the limit, and larger than a socket's buffer
  std::vector<Future<std::string>> answers;
  for (int i = 0; i < 200; ++i) answers.push_back(job[0].async<&twice>("b", i % 50 == 0 ? large : small));
  for (size_t i = 0; i < answers.size(); ++i)
    EXPECT_EQ(i % 50 == 0 ? 2 * large.size() : 2 * small.size(), answers[i].wait().size());
}

// The pool of a process lives as long as that, and so does its thread, which the thread sanitizer takes for forgotten.
TEST(Options, ofMemoryAheadChangeNoResult) {
  if (test::kThreadSanitizer) GTEST_SKIP() << "the process ends with that thread, on purpose";
  WorkerJob job({"a", "b"}, offered(), [](JoinOptions& options) { options.prefaultBytes = 1 << 20; });
  EXPECT_EQ("xx", job[0].call<&twice>("b", "x"));
}

TEST(Options, ofWaitingChangeNoResult) {
  WorkerJob job({"a", "b"}, offered(), [](JoinOptions& options) {
    options.spinTimeout = 0us;
    options.serverSpinTimeout = 200us;
  });
  for (int i = 0; i < 20; ++i)
    EXPECT_EQ("xx", job[static_cast<size_t>(i % 2)].call<&twice>(i % 3 == 0 ? "a" : "b", "x"));
}

// It waits for the next message, and not longer than some milliseconds when there is none.
TEST(Options, ofALazyCallLetItWaitAndNotForGood) {
  WorkerJob job({"a", "b"}, offered());
  Counter notes;
  for (int i = 0; i < 10; ++i) job[0].with({.lazy = true}).async<&note>("b", notes);
  EXPECT_EQ("xx", job[0].call<&twice>("b", "x"));
  notes.waitFor(10);
  Future<void> last = job[0].with({.lazy = true}).async<&note>("b", notes);
  last.wait();
  EXPECT_EQ(11, notes.count());
}

TEST(Options, ofADeclaredTypeLetItBeMadeElsewhereOnly) {
  Functions declared;
  declared.declareType<Counted, int>("Counted").declare<&Counted::next>("next");
  WorkerJob job({"knows", "offers"}, {},
                [&](JoinOptions& options) { options.functions = options.name == "knows" ? declared : offered(); });
  RRef<Counted> made = job[0].make<Counted>("offers", 7);
  EXPECT_EQ(8, made.call<&Counted::next>());
  std::string why = messageOf<NotFoundError>([&] { job[1].make<Counted>("knows", 7).waitUntilReady(); });
  EXPECT_TRUE(contains(why, "'Counted'"));
}

}  // namespace
}  // namespace treadle::options_test

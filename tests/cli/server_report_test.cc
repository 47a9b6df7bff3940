#include "treadle/cli/server_report.h"

#include "gtest/gtest.h"
#include "tests/support/gate.h"

namespace treadle::cli::server_report_test {
namespace {

using namespace std::chrono_literals;

TEST(ServerReport, ShowsClientsBytesAndSumsPerSecond) {
  const SummationCounters before{.services = 7, .clients = 7, .bytesReceived = 1'000, .bytesSent = 0, .sums = 10};
  const SummationCounters now{
      .services = 1, .clients = 4, .bytesReceived = 236'001'000, .bytesSent = 2'400'000'000, .sums = 69};
  EXPECT_EQ("1 service with 4 workers: 118 MB/s in, 1.20 GB/s out, 29.5 sums/s", textOf(before, now, 2s));
  EXPECT_EQ("0 services with 0 workers: 0 B/s in, 0 B/s out, 0.0 sums/s", textOf({}, {}, 1s));
  EXPECT_EQ("1 service with 4 workers: 2.36 GB/s in, 24.0 GB/s out, 590.0 sums/s", textOf(before, now, 100ms));
  EXPECT_EQ("236 MB in, 2.40 GB out, 69 sums", totalOf(now));
  EXPECT_EQ("999 B in, 1.00 kB out, 1 sum", totalOf({.bytesReceived = 999, .bytesSent = 1000, .sums = 1}));
}

// Nothing is written of a time in which nothing moved.
TEST(ServerReport, WritesWhileSomethingMoves) {
  Mutex mutex;
  SummationCounters counters;
  std::vector<std::string> lines;
  int reads = 0;
  const auto readsSoFar = [&] {
    MutexLock lock(mutex);
    return reads;
  };
  const ServerReport report(
      1ms,
      [&] {
        MutexLock lock(mutex);
        ++reads;
        return counters;
      },
      [&](const std::string& line) {
        MutexLock lock(mutex);
        lines.push_back(line);
      });
  EXPECT_TRUE(test::eventually([&] { return readsSoFar() > 3; }));
  {
    MutexLock lock(mutex);
    EXPECT_TRUE(lines.empty());
    counters.sums = 1;
    reads = 0;
  }
  EXPECT_TRUE(test::eventually([&] { return readsSoFar() > 3; }));
  MutexLock lock(mutex);
  EXPECT_EQ(1U, lines.size());
}

TEST(ServerReport, NeverReadsWithoutAnInterval) {
  const ServerReport report(
      kNoTimeout, []() -> SummationCounters { throw std::runtime_error("it was read"); }, [](const std::string&) {});
}

}  // namespace
}  // namespace treadle::cli::server_report_test

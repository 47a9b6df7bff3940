// What operations cost on the wire, from data of 1 MiB on: the bytes of their algorithm and less than half a percent
// more. The kernel counts them, on TCP sockets: data, the frames around it, starts and acknowledgements.

#include <dirent.h>
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <optional>

#include "tests/core/group/cell_run.h"
#include "tests/core/group/sparse_rows.h"
#include "tests/support/descriptors.h"

namespace treadle::wire_bytes_test {
namespace {

using group::Algorithm;
using group::OperationKind;
using test::Cell;
using test::GroupJob;

constexpr size_t kMiB = 1U << 20;

// How many bytes this process has handed to the network by TCP so far, without those that were sent again. Nothing
// where this kernel does not count them.
std::optional<uint64_t> sentByTcp() {
  uint64_t bytes = 0;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc/self/fd"), ::closedir);
  if (!folder) return std::nullopt;
  while (const dirent* entry = ::readdir(folder.get())) {
    const int fd = std::atoi(entry->d_name);
    int protocol = 0;
    socklen_t size = sizeof protocol;
    if (::getsockopt(fd, SOL_SOCKET, SO_PROTOCOL, &protocol, &size) != 0 || protocol != IPPROTO_TCP) continue;
    tcp_info info = {};
    size = sizeof info;
    if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) continue;
    if (size < offsetof(tcp_info, tcpi_bytes_retrans) + sizeof info.tcpi_bytes_retrans) return std::nullopt;
    bytes += info.tcpi_bytes_sent - info.tcpi_bytes_retrans;
  }
  return bytes;
}

// How many bytes all members together send by the formula of the algorithm (group.h), where each has so many, in one
// block for each member where it has blocks for all.
double theoryOf(const Cell& cell, double bytes) {
  const double n = cell.size, h = cell.hosts, m = n / h;
  switch (cell.operation) {
    case OperationKind::kAllReduce:
      if (cell.algorithm != Algorithm::kHierarchical) return 2 * (n - 1) * bytes;
      return n * (2 * (m - 1) / m + 2 * (h - 1) / h / m) * bytes;
    // The member that combines a block has a part of its own, and sends it on unless it is the root.
    case OperationKind::kReduce:
      return (n - 1) * bytes + (cell.algorithm == Algorithm::kDirect ? (n - 1) / n * bytes : 0);
    case OperationKind::kReduceScatter:
    case OperationKind::kAllGather:
    case OperationKind::kAllToAll:
    case OperationKind::kAllToAllV: return (n - 1) * bytes;
    case OperationKind::kGather:
    case OperationKind::kScatter:
    case OperationKind::kBroadcast: return (n - 1) * bytes;
    case OperationKind::kSend: return bytes;
    case OperationKind::kBarrier:
    case OperationKind::kSparseAllReduce: break;
  }
  return 0;
}

// The elements of 4 bytes by which a cell counts: of a block where a member gives one to each.
size_t countOf(const Cell& cell, size_t bytes) {
  const bool isOneForEach = cell.hasBlocks() && !cell.hasRoot();
  return bytes / 4 / (isOneForEach ? static_cast<size_t>(cell.size) : 1);
}

struct Amount {
  int size;
  size_t bytes;
  int hosts = 1;
};

void expectTheory(uint64_t sent, double theory) {
  EXPECT_GE(static_cast<double>(sent), theory);
  EXPECT_LT(static_cast<double>(sent), 1.005 * theory) << static_cast<double>(sent) / theory;
}

class WireBytes : public ::testing::TestWithParam<Amount> {
 protected:
  // Each member calls it. Returns the bytes that all have sent meanwhile.
  uint64_t sentBy(const Cell& cell) {
    const std::vector<ProcessGroup> groups = job_.makeAll(cell.options(""));
    const uint64_t before = *sentByTcp();
    test::runCell(cell, groups);
    return *sentByTcp() - before;
  }

  GroupJob job_{GetParam().size, {.tcp = true}};
};

TEST_P(WireBytes, AreThoseOfTheAlgorithmAndHalfAPercent) {
  if (!sentByTcp()) GTEST_SKIP() << "this kernel does not count the bytes of a TCP connection";
  const Amount amount = GetParam();
  job_.spreadOver(amount.hosts);
  for (uint8_t operation = 1; group::isOperation(operation); ++operation)
    for (uint8_t algorithm = 1; group::isAlgorithm(algorithm); ++algorithm) {
      Cell cell{.operation = static_cast<OperationKind>(operation),
                .algorithm = static_cast<Algorithm>(algorithm),
                .size = amount.size,
                .hosts = amount.hosts,
                .chunkBytes = GroupOptions{}.chunkBytes};
      cell.count = countOf(cell, amount.bytes);
      if (cell.small() || cell.isBarrier() || !cell.isServed()) continue;
      SCOPED_TRACE(cell.name());
      expectTheory(sentBy(cell), theoryOf(cell, static_cast<double>(amount.bytes)));
    }
}

// Cut into pieces, each of which is an all-reduce.
TEST_P(WireBytes, OfTensorsByNameAreThoseOfAllReduces) {
  if (!sentByTcp()) GTEST_SKIP() << "this kernel does not count the bytes of a TCP connection";
  const Amount amount = GetParam();
  if (amount.hosts > 1) GTEST_SKIP() << "no algorithm is chosen by the hosts of so few members";
  std::vector<ProcessGroup> groups = job_.makeAll();
  std::vector<std::vector<float>> data(groups.size(), std::vector<float>(amount.bytes / 4, 1));
  const uint64_t before = *sentByTcp();
  std::vector<Future<void>> futures;
  for (size_t rank = 0; rank < groups.size(); ++rank)
    futures.push_back(pushPull(groups[rank], "gradient", std::span(data[rank])));
  test::waitAll(futures);
  expectTheory(*sentByTcp() - before, 2.0 * (amount.size - 1) * static_cast<double>(amount.bytes));
}

// Of n members that together have K rows, k each: (n-1) (k + K) rows, of 256 bytes. All have the same ones, or each its
// own.
TEST_P(WireBytes, OfSparseSumsAreThoseOfTheirRows) {
  if (!sentByTcp()) GTEST_SKIP() << "this kernel does not count the bytes of a TCP connection";
  if (GetParam().hosts > 1) GTEST_SKIP() << "sparse sums do not go by hosts";
  constexpr uint64_t kWidth = 64;
  const uint64_t members = static_cast<uint64_t>(GetParam().size), rows = GetParam().bytes / (kWidth * sizeof(float));
  const std::vector<ProcessGroup> groups = job_.makeAll();
  for (const uint64_t share : {uint64_t{1}, members}) {
    test::SparseMembers<float> data(members);
    for (uint64_t row = 0; row < share * rows; ++row)
      for (uint64_t rank = 0; rank < members; ++rank)
        if (share == 1 || row % members == rank) data[rank].add(row, kWidth, 1);
    const uint64_t before = *sentByTcp();
    sumOfAll(groups, {{share * rows, kWidth}, 1}, data);
    expectTheory(*sentByTcp() - before,
                 static_cast<double>((members - 1) * (rows + share * rows) * kWidth * sizeof(float)));
  }
}

INSTANTIATE_TEST_SUITE_P(Members, WireBytes,
                         ::testing::Values(Amount{2, kMiB}, Amount{4, kMiB}, Amount{8, kMiB}, Amount{17, kMiB},
                                           Amount{2, 10 * kMiB}, Amount{4, 10 * kMiB}, Amount{4, kMiB, 2},
                                           Amount{8, kMiB, 2}),
                         [](const auto& info) {
                           return std::to_string(info.param.size) + "On" + std::to_string(info.param.hosts) + "With" +
                                  std::to_string(info.param.bytes / kMiB) + "MiB";
                         });

// What they take by themselves.
TEST(WireBytesOfManyMembers, AreThoseOfTheAlgorithmsAndHalfAPercent) {
  constexpr int kMembers = 64;
  if (!sentByTcp()) GTEST_SKIP() << "this kernel does not count the bytes of a TCP connection";
  if (!test::mayHaveDescriptors(10'000)) GTEST_SKIP() << "this process may not have so many sockets";
  GroupJob job(kMembers, {.tcp = true});
  for (uint8_t operation = 1; group::isOperation(operation); ++operation) {
    Cell cell{
        .operation = static_cast<OperationKind>(operation), .size = kMembers, .chunkBytes = GroupOptions{}.chunkBytes};
    if (cell.isBarrier() || cell.isSend() || cell.operation == OperationKind::kSparseAllReduce) continue;
    cell.count = countOf(cell, kMiB);
    cell.algorithm = *group::choose({}, cell.description(), group::Surroundings::onOneHost(kMembers));
    SCOPED_TRACE(cell.name());
    const std::vector<ProcessGroup> groups = job.makeAll(cell.options(""));
    const uint64_t before = *sentByTcp();
    test::runCell(cell, groups);
    expectTheory(*sentByTcp() - before, theoryOf(cell, kMiB));
  }
}

}  // namespace
}  // namespace treadle::wire_bytes_test

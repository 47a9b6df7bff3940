// Which connection is next: each has its share of what is sent at every moment, whichever can be written.

#include "treadle/core/summation/send_order.h"

#include <algorithm>
#include <array>

#include "tests/support/seeds.h"
#include "treadle/core/summation/shares.h"

namespace treadle::summation::send_order_test {
namespace {

using test::pick;
using test::Random;

constexpr uint64_t kPiece = 16 << 10;

SendOrder allPending(const std::vector<double>& shares, bool endTogether = true) {
  SendOrder order(shares, SendOrder::kLeadBytes, endTogether);
  for (size_t i = 0; i < shares.size(); ++i) {
    order.setPending(i, true);
    order.setWritable(i, true);
  }
  return order;
}

TEST(SendOrder, GivesEachConnectionItsShareAtEveryMoment) {
  const std::vector<double> shares = {0.5, 0.3, 0.15, 0.05};
  SendOrder order = allPending(shares);
  std::vector<double> sent(shares.size());
  double all = 0;
  for (int piece = 0; piece < 2000; ++piece) {
    const size_t next = order.next().value();
    order.sent(next, kPiece);
    sent[next] += kPiece;
    all += kPiece;
    for (size_t i = 0; i < shares.size(); ++i) EXPECT_NEAR(shares[i] * all, sent[i], 2 * kPiece) << "connection " << i;
  }
}

// Connections can be written now and then, by chance. What is sent stays in proportion within the lead.
TEST(SendOrder, LetsNoneLeadByMoreThanItsLimit) {
  test::forSeeds(30, [](Random& random) {
    const size_t workers = 3 + pick(random, 5), servers = pick(random, workers);
    const Shares best = bestShares(Bandwidths::even(workers, servers, 1));
    std::vector<double> shares(workers - 1, best.workers[0]);  // of the other workers
    shares.insert(shares.end(), best.servers.begin(), best.servers.end());
    SendOrder order = allPending(shares);
    std::vector<double> sent(shares.size());
    for (int piece = 0; piece < 5000; ++piece) {
      for (size_t i = 0; i < shares.size(); ++i) order.setWritable(i, pick(random, 3) == 0);
      const std::optional<size_t> next = order.next();
      if (!next) continue;
      order.sent(*next, kPiece);
      sent[*next] += kPiece;
    }
    std::vector<double> times;
    for (size_t i = 0; i < shares.size(); ++i) times.push_back(sent[i] / shares[i]);
    const auto [least, most] = std::minmax_element(times.begin(), times.end());
    const double ofAPiece = kPiece / *std::min_element(shares.begin(), shares.end());
    EXPECT_LE(*most - *least, SendOrder::kLeadBytes + ofAPiece);
  });
}

TEST(SendOrder, WaitsForOneThatCannotBeWritten) {
  SendOrder order = allPending({0.5, 0.5});
  order.setWritable(1, false);
  uint64_t sent = 0;
  while (const std::optional<size_t> next = order.next()) {
    ASSERT_EQ(0u, *next);
    order.sent(0, kPiece);
    sent += kPiece;
  }
  EXPECT_NEAR(SendOrder::kLeadBytes / 2, static_cast<double>(sent), kPiece);
  order.setWritable(1, true);
  EXPECT_EQ(1u, order.next());
}

// The others share what there is. It has its share again when it can be written to, and no more.
TEST(SendOrder, DoesNotWaitForOneThatCannotBeWrittenToWhereMachinesNeedNotEndTogether) {
  SendOrder order = allPending({0.5, 0.25, 0.25}, /*endTogether=*/false);
  order.setWritable(0, false);
  std::array<int, 3> pieces{};
  for (int piece = 0; piece < 1000; ++piece) {
    const size_t next = order.next().value();
    order.sent(next, kPiece);
    ++pieces[next];
  }
  EXPECT_EQ(0, pieces[0]);
  EXPECT_NEAR(pieces[1], pieces[2], 1);
  order.setWritable(0, true);
  pieces = {};
  for (int piece = 0; piece < 1000; ++piece) {
    const size_t next = order.next().value();
    order.sent(next, kPiece);
    ++pieces[next];
  }
  EXPECT_NEAR(500, pieces[0], 20);
  EXPECT_NEAR(250, pieces[1], 20);
  EXPECT_NEAR(250, pieces[2], 20);
}

TEST(SendOrder, DoesNotWaitForOneThatHasNothingToSend) {
  SendOrder order = allPending({0.5, 0.5});
  order.setPending(1, false);
  for (int piece = 0; piece < 1000; ++piece) {
    ASSERT_EQ(0u, order.next());
    order.sent(0, kPiece);
  }
  // Which then has no claim to what it did not use.
  order.setPending(1, true);
  int ofSecond = 0;
  for (int piece = 0; piece < 100; ++piece) {
    const size_t next = order.next().value();
    order.sent(next, kPiece);
    ofSecond += next == 1 ? 1 : 0;
  }
  EXPECT_NEAR(50, ofSecond, 1);
}

// What one has sent while it was alone does not count against it later.
TEST(SendOrder, ForgetsWhatWasSentBeforeAllWereIdle) {
  SendOrder order = allPending({0.5, 0.5});
  order.setPending(1, false);
  for (int piece = 0; piece < 1000; ++piece) order.sent(0, kPiece);
  order.setPending(0, false);
  order.setPending(1, true);
  order.setPending(0, true);
  std::vector<int> pieces(2);
  for (int piece = 0; piece < 200; ++piece) {
    const size_t next = order.next().value();
    order.sent(next, kPiece);
    ++pieces[next];
  }
  EXPECT_NEAR(100, pieces[0], 1 + SendOrder::kLeadBytes / 2 / kPiece);
}

TEST(SendOrder, LetsThoseWithoutAShareGoFirst) {
  SendOrder order = allPending({1, 0});
  order.sent(1, 32);
  EXPECT_EQ(1u, order.next());
  order.setPending(1, false);
  EXPECT_EQ(0u, order.next());
}

TEST(SendOrder, HasNoneNextWhereNothingCanBeSent) {
  SendOrder order({0.5, 0.5});
  EXPECT_FALSE(order.next());
  order.setWritable(0, true);
  EXPECT_FALSE(order.next());
  order.setPending(1, true);
  EXPECT_FALSE(order.next());
}

TEST(SendOrder, GivesOtherSharesFromWhenTheyChange) {
  SendOrder order = allPending({0.5, 0.25, 0.25});
  std::vector<double> sent(3);
  for (int piece = 0; piece < 2000; ++piece) {
    if (piece == 1000) {
      order.setShares({0.25, 0.75, 0});
      order.setPending(2, false);
    }
    const size_t next = order.next().value();
    order.sent(next, kPiece);
    if (piece >= 1000) ++sent[next];
  }
  EXPECT_NEAR(250, sent[0], 30);
  EXPECT_NEAR(750, sent[1], 30);
  EXPECT_EQ(0, sent[2]);
}

}  // namespace
}  // namespace treadle::summation::send_order_test

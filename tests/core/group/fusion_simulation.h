#pragma once
// Members that offer tensors by name and rank 0, which matches them, without a network: messages keep their order
// between two members, and everything else happens in a random order. Messages go through their encoding.

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "tests/support/seeds.h"
#include "treadle/core/group/fusion_root.h"
#include "treadle/core/group/offer_book.h"

namespace treadle::test {

class FusionSimulation {
 public:
  // A part of a tensor, as all members know it: its name, and the how-manieth offer of this name it belongs to.
  struct Piece {
    std::string name;
    int round;
    uint64_t begin, end;
    bool operator==(const Piece&) const = default;
  };
  enum class Outcome { kOpen, kSummed, kFailed };

  FusionSimulation(int members, Random& random) : root_(namesOf(members), "group 'g'"), random_(random) {
    for (int rank = 0; rank < members; ++rank) members_.push_back(std::make_unique<Member>());
  }

  void offer(int rank, const std::string& name, group::Signature signature) {
    Member& member = at(rank);
    const int round = member.rounds[name]++;
    const uint64_t elements = signature.elements();
    const uint64_t number = member.book.add({name, std::move(signature)});
    ASSERT_EQ(number, member.offers.size());
    member.offers.push_back({name, round, elements});
    send();
  }
  // A name that is in flight must not be offered again. One that the member has given up may.
  bool mayOffer(int rank, const std::string& name) {
    const std::vector<Offered>& offers = at(rank).offers;
    return std::none_of(offers.begin(), offers.end(), [&name](const Offered& one) {
      return one.name == name && one.outcome == Outcome::kOpen && !one.withdrawn;
    });
  }
  void withdraw(int rank, uint64_t number) {
    Member& member = at(rank);
    if (!member.book.isOpen(number) || std::exchange(member.offers[number].withdrawn, true)) return;
    member.book.withdraw(number, cancelled("rank " + std::to_string(rank)));
    send();
  }

  // Something that can happen; false when nothing can.
  bool step() {
    std::vector<std::function<void()>> possible;
    for (int rank = 0; rank < size(); ++rank) {
      Member& member = at(rank);
      if (!member.toRoot.empty()) possible.emplace_back([this, rank] { deliverToRoot(rank); });
      if (!member.fromRoot.empty()) possible.emplace_back([this, rank] { deliverToMember(rank); });
    }
    for (const uint64_t batch : underWay_)
      if (std::all_of(members_.begin(), members_.end(),
                      [batch](const auto& member) { return member->batches.size() > batch; }))
        possible.emplace_back([this, batch] { end(batch, {}); });
    if (possible.empty()) return false;
    possible[pick(random_, possible.size())]();
    send();
    return true;
  }
  // Rank 0's part in the oldest batch fails. False when there is none.
  bool failABatch() {
    if (underWay_.empty()) return false;
    end(*underWay_.begin(), internalError("the batch failed"));
    send();
    return true;
  }

  // What has come of the member's offers, by name and round.
  std::map<std::pair<std::string, int>, Outcome> outcomesOf(int rank) const {
    std::map<std::pair<std::string, int>, Outcome> outcomes;
    const Member& member = *members_[static_cast<size_t>(rank)];
    for (const Offered& one : member.offers) outcomes[{one.name, one.round}] = one.outcome;
    return outcomes;
  }
  const Status& failureOf(int rank, uint64_t number) const {
    return members_[static_cast<size_t>(rank)]->offers[number].failure;
  }
  // The list of the member.
  const std::vector<std::vector<Piece>>& batchesOf(int rank) const {
    return members_[static_cast<size_t>(rank)]->batches;
  }
  size_t offersOf(int rank) { return at(rank).offers.size(); }
  size_t openOf(int rank) {
    size_t open = 0;
    for (uint64_t number = 0; number < at(rank).offers.size(); ++number) open += at(rank).book.isOpen(number) ? 1 : 0;
    return open;
  }
  int size() const { return static_cast<int>(members_.size()); }
  group::FusionRoot& root() { return root_; }
  size_t messages() const { return messages_; }

 private:
  struct Offered {
    std::string name;
    int round;
    uint64_t elements;
    Outcome outcome = Outcome::kOpen;
    bool withdrawn = false;
    Status failure = {};
  };
  struct Member {
    group::OfferBook book;
    std::map<std::string, int> rounds;
    std::vector<Offered> offers;  // by number
    std::deque<std::vector<std::byte>> toRoot, fromRoot;
    std::vector<std::vector<Piece>> batches;
  };

  static std::vector<std::string> namesOf(int members) {
    std::vector<std::string> names;
    for (int rank = 0; rank < members; ++rank) names.push_back("worker " + std::to_string(rank));
    return names;
  }
  Member& at(int rank) { return *members_[static_cast<size_t>(rank)]; }

  // The messages that are due.
  void send() {
    for (int rank = 0; rank < size(); ++rank)
      if (const std::optional<group::Offers> offers = at(rank).book.next()) {
        at(rank).toRoot.push_back(encode(*offers));
        ++messages_;
      }
    for (auto& [rank, orders] : root_.takeOrders()) {
      if (rank == 0 && !orders.parts.empty()) underWay_.insert(ordered_++);
      at(rank).fromRoot.push_back(encode(orders));
      ++messages_;
    }
    EXPECT_LE(underWay_.size(), group::kUnderWay);
  }

  void deliverToRoot(int rank) {
    Result<group::Offers> offers = group::parseOffers(at(rank).toRoot.front());
    at(rank).toRoot.pop_front();
    ASSERT_TRUE(offers.ok()) << offers.status().toString();
    const Status taken = root_.take(rank, std::move(*offers), TimePoint());
    ASSERT_TRUE(taken.ok()) << taken.toString();
  }

  void deliverToMember(int rank) {
    Member& member = at(rank);
    Result<group::Orders> orders = group::parseOrders(member.fromRoot.front());
    member.fromRoot.pop_front();
    ASSERT_TRUE(orders.ok()) << orders.status().toString();
    const Status taken = member.book.take(*orders);
    ASSERT_TRUE(taken.ok()) << taken.toString();
    if (!orders->parts.empty()) member.batches.emplace_back();
    for (const group::Part& part : orders->parts) {
      Offered& one = member.offers[part.number];
      member.batches.back().push_back({one.name, one.round, part.elements.begin, part.elements.end});
      if (part.elements.end == one.elements) one.outcome = Outcome::kSummed;
    }
    for (const group::Failed& failed : orders->failures) {
      Offered& one = member.offers[failed.number];
      EXPECT_EQ(one.outcome, Outcome::kOpen) << "an offer ends once";
      one.outcome = Outcome::kFailed;
      one.failure = failed.why;
    }
  }

  void end(uint64_t batch, const Status& status) {
    underWay_.erase(batch);
    root_.ended(batch, status);
  }

  std::vector<std::unique_ptr<Member>> members_;
  group::FusionRoot root_;
  Random& random_;
  std::set<uint64_t> underWay_;
  uint64_t ordered_ = 0;  // batches
  size_t messages_ = 0;
};

}  // namespace treadle::test

// Rank 0 and a member that match tensors by name (group/fusion_root.h, offer_book.h), and a second member that sends
// any messages to both. Each step of an input is a byte for what happens, and for a message its length and its bytes.
//
// Whatever the second one sends, rank 0 keeps its bounds, and the first one finds all orders of rank 0 right.

#include <set>

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/group/fusion_root.h"
#include "treadle/core/group/offer_book.h"

namespace treadle::fuzz::fusion_fuzz {
namespace {

enum Step : uint8_t { kOfferOfTheFirst, kWithdrawalOfTheFirst, kOffersOfTheSecond, kOrdersOfTheSecond, kEnd, kSteps };

class Play {
 public:
  void step(Choices& choices) {
    switch (static_cast<Step>(choices.below(kSteps))) {
      case kOfferOfTheFirst: return offer(choices);
      case kWithdrawalOfTheFirst: return withdraw(choices.number<uint8_t>());
      case kOffersOfTheSecond: return takeOffers(messageOf(choices));
      case kOrdersOfTheSecond: return takeOrders(messageOf(choices));
      case kEnd:
      case kSteps: return end(choices.below(2) == 0 ? Status() : cancelled("it failed"));
    }
  }

 private:
  static Bytes messageOf(Choices& choices) { return choices.bytes(choices.number<uint8_t>()); }

  // Of one of a few names, which the second one can guess.
  void offer(Choices& choices) {
    std::string name(1, static_cast<char>('a' + choices.below(4)));
    if (!names_.insert(name).second) return;
    const uint64_t elements = choices.number<uint32_t>();
    offered_.push_back(name);
    first_.add({name, {group::DataType::kFloat32, group::ReduceOp::kSum, {elements}}});
    deceived_.add({name, {group::DataType::kFloat32, group::ReduceOp::kSum, {elements}}});
    exchange();
  }

  void withdraw(uint64_t number) {
    if (!first_.isOpen(number) || !withdrawn_.insert(number).second) return;
    first_.withdraw(number, cancelled("it was cancelled"));
    exchange();
  }

  // From the second one. After what no member sends it is cut off.
  void takeOffers(Bytes body) {
    Result<group::Offers> offers = group::parseOffers(body);
    if (cutOff_ || !offers.ok()) return;
    const Status taken = root_.take(1, std::move(*offers), TimePoint());
    cutOff_ = !taken.ok();
    promise(taken.ok() || taken.code() == Code::kDataLoss, "it is refused in one way");
    promise(root_.table().openOf(1) <= group::kMostOpenOffers, "a member has not too many offers open");
    if (!cutOff_) exchange();
  }

  // As if it were rank 0, to a member that has offered the same as the first one.
  void takeOrders(Bytes body) {
    Result<group::Orders> orders = group::parseOrders(body);
    if (!orders.ok()) return;
    const std::vector<bool> before = openAtTheDeceived();
    const Status taken = deceived_.take(*orders);
    promise(taken.ok() || openAtTheDeceived() == before, "what is refused changes nothing");
    deceived_.next();
  }

  std::vector<bool> openAtTheDeceived() const {
    std::vector<bool> open;
    for (uint64_t number = 0; number < offered_.size(); ++number) open.push_back(deceived_.isOpen(number));
    return open;
  }

  void end(const Status& status) {
    if (cutOff_ || ended_ == ordered_) return;
    root_.ended(ended_++, status);
    exchange();
  }

  void exchange() {
    if (cutOff_) return;
    for (bool more = true; more;) {
      std::optional<group::Offers> offers = first_.next();
      if (offers) promise(root_.take(0, std::move(*offers), TimePoint()).ok(), "the first sends what members send");
      auto orders = root_.takeOrders();
      more = offers || !orders.empty();
      for (auto& [rank, one] : orders)
        if (rank == 0) takeFromRoot(one);
    }
    promise(ordered_ - ended_ <= group::kUnderWay, "few batches are under way");
    promise(root_.table().failed() <= root_.table().size(), "what has failed is in the table");
    root_.stalls(TimePoint() + std::chrono::hours(1), std::chrono::seconds(30));
  }

  void takeFromRoot(group::Orders& orders) {
    promise(first_.take(orders).ok(), "the first finds all orders right");
    if (!orders.parts.empty()) ++ordered_;
    for (const group::Part& part : orders.parts)
      if (!first_.isOpen(part.number)) names_.erase(offered_[part.number]);
    for (const group::Failed& failed : orders.failures) names_.erase(offered_[failed.number]);
  }

  group::FusionRoot root_{{"the first", "the second"}, "a group"};
  group::OfferBook first_, deceived_;
  std::vector<std::string> offered_;  // by number
  std::set<std::string> names_;       // of the first, in flight
  std::set<uint64_t> withdrawn_;
  uint64_t ordered_ = 0, ended_ = 0;  // batches
  bool cutOff_ = false;
};

void feed(Bytes input) {
  Choices choices(input);
  Play play;
  for (int step = 0; step < 1000 && choices.any(); ++step) play.step(choices);
}

std::vector<std::byte> withLength(int step, const std::vector<std::byte>& message) {
  return joined({row({step, static_cast<int>(message.size())}), message});
}

Inputs seeds() {
  const auto offersOf = [](std::vector<std::variant<group::Offer, group::Failed>> entries) {
    return withLength(kOffersOfTheSecond, group::encode(group::Offers{std::move(entries)}));
  };
  const group::Signature one{group::DataType::kFloat32, group::ReduceOp::kSum, {1}};
  const group::Signature other{group::DataType::kFloat32, group::ReduceOp::kMax, {1}};
  const std::vector<std::byte> a = row({kOfferOfTheFirst, 0, 1, 0, 0, 0}), b = row({kOfferOfTheFirst, 1, 1, 0, 0, 0});
  const std::vector<std::byte> large = row({kOfferOfTheFirst, 0, 0, 0, 0x20, 0}), ended = row({kEnd, 0});
  const group::Signature largeOne{group::DataType::kFloat32, group::ReduceOp::kSum, {0x200000}};
  const auto orders = [](const group::Orders& what) { return withLength(kOrdersOfTheSecond, group::encode(what)); };
  return {joined({a, b, offersOf({group::Offer{"b", one}, group::Offer{"a", one}}), ended}),
          joined({a, offersOf({group::Offer{"a", other}}), a}),
          joined({large, offersOf({group::Offer{"a", largeOne}}), ended, row({kEnd, 1})}),
          joined({a, row({kWithdrawalOfTheFirst, 0}), a, offersOf({group::Offer{"a", one}, group::Offer{"a", one}})}),
          joined({offersOf({group::Offer{"c", one}, group::Failed{0, cancelled("x")}}),
                  offersOf({group::Offer{"c", one}})}),
          joined({a, orders({true, {{0, {0, 1}}}, {}}), b, orders({true, {}, {{1, cancelled("x")}}})})};
}

const Fuzzer kFusion("fusion", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::fusion_fuzz

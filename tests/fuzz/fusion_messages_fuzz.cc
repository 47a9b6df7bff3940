// The messages between members about tensors that are matched by name (group/fusion_messages.h). The first byte chooses
// one of the two.

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/group/fusion_messages.h"

namespace treadle::fuzz::fusion_messages_fuzz {
namespace {

constexpr std::byte kOffers{0}, kOrders{1};

void feedOffers(Bytes body) {
  const Result<group::Offers> offers = group::parseOffers(body);
  if (!offers.ok()) return;
  promise(group::encode(*offers) == std::vector<std::byte>(body.begin(), body.end()),
          "offers are written as they came");
  promise(!offers->entries.empty() && offers->entries.size() <= group::kMostEntries, "a message has a few entries");
  for (const auto& entry : offers->entries) {
    if (const auto* offer = std::get_if<group::Offer>(&entry)) {
      promise(group::checkTensorName(offer->name).ok(), "a name may be written to a log");
      promise(group::check(offer->signature).ok(), "a tensor may be in a memory");
    } else {
      promise(!std::get<group::Failed>(entry).why.ok(), "a withdrawal has a reason");
    }
  }
}

void feedOrders(Bytes body) {
  const Result<group::Orders> orders = group::parseOrders(body);
  if (!orders.ok()) return;
  promise(group::encode(*orders) == std::vector<std::byte>(body.begin(), body.end()),
          "orders are written as they came");
  promise(orders->answered || !orders->parts.empty() || !orders->failures.empty(), "orders hold something");
  promise(orders->parts.size() <= group::kMostParts, "an operation has not too many parts");
  promise(orders->failures.size() <= group::kMostFailures, "a message has few failures");
  for (const group::Part& part : orders->parts)
    promise(part.elements.begin <= part.elements.end, "a part ends after it begins");
}

void feed(Bytes input) {
  if (input.empty()) return;
  (input[0] == kOffers ? feedOffers : feedOrders)(input.subspan(1));
}

Inputs seeds() {
  const group::Offers offers{{group::Offer{"layer1.weight", {group::DataType::kFloat32, group::ReduceOp::kSum, {2, 3}}},
                              group::Failed{0, cancelled("it was cancelled")},
                              group::Offer{"scalar", {group::DataType::kInt64, group::ReduceOp::kMax}}}};
  const group::Orders orders{true, {{4, {0, 100}}, {9, {1000, 1000}}}, {{7, peerLost("w2", "it was lost")}}};
  Inputs all;
  const group::Offers least{{group::Failed{0, cancelled("")}}};
  for (const auto& bytes : {group::encode(offers), group::encode(least), group::encode(group::Offers{})})
    all.push_back(joined({{kOffers}, bytes}));
  const group::Orders answer{true, {}, {}};
  for (const auto& bytes : {group::encode(orders), group::encode(answer), group::encode(group::Orders{})})
    all.push_back(joined({{kOrders}, bytes}));
  return all;
}

const Fuzzer kFusionMessages("fusion_messages", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::fusion_messages_fuzz

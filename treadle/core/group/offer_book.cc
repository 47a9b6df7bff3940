#include "treadle/core/group/offer_book.h"

#include <set>
#include <utility>

#include "treadle/core/group/batch_cutter.h"

namespace treadle::group {

uint64_t OfferBook::add(Offer offer) {
  open_[next_] = {offer.signature.dataType, offer.signature.reduceOp, offer.signature.elements()};
  unsent_.emplace_back(std::move(offer));
  return next_++;
}

void OfferBook::withdraw(uint64_t number, Status why) { unsent_.emplace_back(Failed{number, std::move(why)}); }

std::optional<Offers> OfferBook::next() {
  if (awaitsAnswer_ || unsent_.empty()) return std::nullopt;
  awaitsAnswer_ = true;
  Offers offers;
  for (; !unsent_.empty() && offers.entries.size() < kMostEntries; unsent_.pop_front()) {
    if (std::holds_alternative<Offer>(unsent_.front())) ++sent_;
    offers.entries.push_back(std::move(unsent_.front()));
  }
  return offers;
}

Status OfferBook::take(Orders& orders) {
  if (orders.answered && !awaitsAnswer_) return dataLoss("it answered offers that were not sent");
  TREADLE_RETURN_IF_ERROR(check(orders.parts));
  for (const Failed& failed : orders.failures)
    if (failed.number >= sent_) return dataLoss("it failed an offer that was not sent");
  if (orders.answered) awaitsAnswer_ = false;
  for (const Part& part : orders.parts) {
    const auto found = open_.find(part.number);
    found->second.ordered = part.elements.end;
    if (part.elements.end == found->second.elements) open_.erase(found);
  }
  std::erase_if(orders.failures, [this](const Failed& failed) { return open_.erase(failed.number) == 0; });
  return {};
}

// Several are put together in memory of this member's, which bounds what they may be.
Status OfferBook::check(const std::vector<Part>& parts) const {
  const Open* first = nullptr;
  uint64_t sizeBytes = 0;
  std::set<uint64_t> seen;
  for (const Part& part : parts) {
    const auto found = open_.find(part.number);
    if (found == open_.end() || part.number >= sent_)
      return dataLoss("it ordered the sum of a tensor that is not open");
    const Open& open = found->second;
    if (first == nullptr) first = &open;
    if (open.dataType != first->dataType || open.reduceOp != first->reduceOp)
      return dataLoss("it ordered tensors of different types or reductions together");
    const bool continues = part.elements.begin == open.ordered && part.elements.end <= open.elements;
    const bool advances = part.elements.count() > 0 || open.elements == 0;
    if (!continues || !advances || !seen.insert(part.number).second)
      return dataLoss("it ordered elements of a tensor that were not due");
    sizeBytes += part.elements.count() * sizeOf(open.dataType);
    if (parts.size() > 1 && sizeBytes > kBatchBytes) return dataLoss("it ordered too much together");
  }
  return {};
}

}  // namespace treadle::group

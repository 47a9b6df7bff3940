#include "treadle/core/group/offer_table.h"

#include <algorithm>
#include <utility>

namespace treadle::group {

std::vector<int> NamedTensor::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < static_cast<int>(numbers.size()); ++rank)
    if (!offeredBy(rank)) ranks.push_back(rank);
  return ranks;
}

NamedTensor* OfferTable::add(int member, uint64_t number, Offer offer, TimePoint now) {
  NamedTensor* tensor = nullptr;
  if (const auto found = byName_.find(offer.name); found != byName_.end()) {
    const std::vector<uint64_t>& rounds = found->second;
    const auto offeredBy = [&](uint64_t id) { return tensors_.at(id).offeredBy(member); };
    const auto next = std::partition_point(rounds.begin(), rounds.end(), offeredBy);
    if (next != rounds.begin() && tensors_.at(*std::prev(next)).failure.ok()) return nullptr;
    if (next != rounds.end()) tensor = &tensors_.at(*next);
  }
  if (tensor == nullptr) {
    tensor = &make(std::move(offer), now);
    tensor->first = member;
  }
  tensor->numbers[static_cast<size_t>(member)] = number;
  ++tensor->offered;
  if (tensor->failure.ok()) open_[static_cast<size_t>(member)][number] = tensor->id;
  return tensor;
}

NamedTensor& OfferTable::make(Offer offer, TimePoint now) {
  NamedTensor& tensor = tensors_[nextId_];
  tensor.id = nextId_++;
  tensor.numbers.assign(open_.size(), NamedTensor::kNone);
  tensor.since = now;
  byName_[offer.name].push_back(tensor.id);
  tensor.name = std::move(offer.name);
  tensor.signature = std::move(offer.signature);
  return tensor;
}

NamedTensor* OfferTable::find(int member, uint64_t number) {
  const auto& open = open_[static_cast<size_t>(member)];
  const auto found = open.find(number);
  return found == open.end() ? nullptr : &tensors_.at(found->second);
}

NamedTensor* OfferTable::find(uint64_t id) {
  const auto found = tensors_.find(id);
  return found == tensors_.end() ? nullptr : &found->second;
}

void OfferTable::fail(NamedTensor& tensor, Status why) {
  close(tensor);
  tensor.failure = std::move(why);
  ++failed_;
  if (tensor.complete()) drop(tensor.id);
}

// All members have offered it, and so they have offered those of its name before it, which are gone.
void OfferTable::drop(uint64_t id) {
  NamedTensor& tensor = tensors_.at(id);
  close(tensor);
  if (!tensor.failure.ok()) --failed_;
  const auto found = byName_.find(tensor.name);
  found->second.erase(found->second.begin());
  if (found->second.empty()) byName_.erase(found);
  tensors_.erase(id);
}

void OfferTable::close(const NamedTensor& tensor) {
  for (size_t rank = 0; rank < open_.size(); ++rank) open_[rank].erase(tensor.numbers[rank]);
}

}  // namespace treadle::group

#include "treadle/core/group/fusion_root.h"

#include <algorithm>

#include "treadle/core/base/listed.h"
#include "treadle/core/group/nearest_name.h"

namespace treadle::group {
namespace {

// Of a report about thousands of tensors, and of the members that a message lists.
constexpr Duration kReportPause = std::chrono::seconds(1);  // between two reports of stalls: a log has few lines
constexpr size_t kMostReported = 8, kMostListed = 8;

// One text for all members, which is no longer than what travels. Does not end within a character of UTF-8.
Status withShortText(Status why) {
  const std::string& text = why.message();
  if (text.size() <= kFailureBytes) return why;
  size_t end = kFailureBytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return Status(why.code(), text.substr(0, end)).withWorker(why.worker());
}

Status extended(const Status& why, const std::string& text) {
  if (text.empty()) return why;
  return Status(why.code(), why.message() + ": " + text).withWorker(why.worker());
}

}  // namespace

FusionRoot::FusionRoot(std::vector<std::string> members, std::string group)
    : members_(std::move(members)),
      group_(std::move(group)),
      table_(static_cast<int>(members_.size())),
      nextNumber_(members_.size()),
      outgoing_(members_.size()) {}

Status FusionRoot::take(int member, Offers offers, TimePoint now) {
  allowHints(now);
  for (auto& entry : offers.entries) {
    Offer* offer = std::get_if<Offer>(&entry);
    TREADLE_RETURN_IF_ERROR(offer != nullptr ? takeOffer(member, std::move(*offer), now)
                                             : takeWithdrawal(member, std::get<Failed>(entry)));
  }
  cut();
  ordersFor(member).answered = true;
  return {};
}

Status FusionRoot::takeOffer(int member, Offer offer, TimePoint now) {
  if (table_.openOf(member) == kMostOpenOffers) return dataLoss("it has more offers open than members may have");
  const uint64_t number = nextNumber_[static_cast<size_t>(member)]++;
  const Signature signature = offer.signature;
  NamedTensor* tensor = table_.add(member, number, std::move(offer), now);
  if (tensor == nullptr) return dataLoss("it offered a tensor twice");
  if (!tensor->failure.ok()) {
    sendFailure(member, number, tensor->failure);
    if (tensor->complete()) table_.drop(tensor->id);
  } else if (tensor->signature != signature) {
    fail(*tensor, mismatch(*tensor, member, signature));
  } else if (tensor->complete()) {
    cutter_.add(tensor->id, tensor->signature);
  }
  return {};
}

// It may be too late for that: all of the tensor has been ordered, or it has failed.
Status FusionRoot::takeWithdrawal(int member, const Failed& withdrawal) {
  if (withdrawal.number >= nextNumber_[static_cast<size_t>(member)])
    return dataLoss("it withdrew an offer that it had not made");
  NamedTensor* tensor = table_.find(member, withdrawal.number);
  if (tensor == nullptr) return {};
  const bool late = withdrawal.why.code() == Code::kDeadlineExceeded;
  const std::string reason = !tensor->complete() ? whyIncomplete(*tensor) : late ? "all members have offered it" : "";
  fail(*tensor, extended(withdrawal.why, reason));
  return {};
}

void FusionRoot::fail(NamedTensor& tensor, Status why) {
  why = withShortText(std::move(why));
  for (size_t rank = 0; rank < members_.size(); ++rank)
    if (tensor.numbers[rank] != NamedTensor::kNone) sendFailure(static_cast<int>(rank), tensor.numbers[rank], why);
  if (tensor.complete()) cutter_.remove(tensor.id);
  table_.fail(tensor, std::move(why));
}

void FusionRoot::ended(uint64_t batch, const Status& status) {
  const auto found =
      std::find_if(underWay_.begin(), underWay_.end(), [batch](const UnderWay& one) { return one.batch == batch; });
  const std::vector<uint64_t> tensors = std::move(found->tensors);
  underWay_.erase(found);
  if (!status.ok())
    for (const uint64_t id : tensors)
      if (NamedTensor* tensor = table_.find(id)) fail(*tensor, status.withContext(textOf(tensor->name, group_)));
  cut();
}

void FusionRoot::cut() {
  while (underWay_.size() < kUnderWay && !cutter_.empty()) order(cutter_.next());
}

void FusionRoot::order(const BatchCutter::Batch& batch) {
  std::vector<const NamedTensor*> tensors;
  for (const BatchCutter::Piece& piece : batch) tensors.push_back(table_.find(piece.tensor));
  for (size_t rank = 0; rank < members_.size(); ++rank) {
    // The parts of a message come before its failures, so these would be in front of failures that are sent earlier.
    Orders& last = ordersFor(static_cast<int>(rank));
    const bool isFree = last.parts.empty() && last.failures.empty();
    Orders& orders = isFree ? last : outgoing_[rank].emplace_back();
    for (size_t i = 0; i < batch.size(); ++i) orders.parts.push_back({tensors[i]->numbers[rank], batch[i].elements});
  }
  UnderWay& underWay = underWay_.emplace_back();
  underWay.batch = nextBatch_++;
  for (const BatchCutter::Piece& piece : batch) {
    if (piece.last) {
      table_.drop(piece.tensor);
    } else {
      underWay.tensors.push_back(piece.tensor);
    }
  }
}

Orders& FusionRoot::ordersFor(int member) {
  std::vector<Orders>& orders = outgoing_[static_cast<size_t>(member)];
  return orders.empty() ? orders.emplace_back() : orders.back();
}

void FusionRoot::sendFailure(int member, uint64_t number, const Status& why) {
  Orders* orders = &ordersFor(member);
  if (orders->failures.size() == kMostFailures) orders = &outgoing_[static_cast<size_t>(member)].emplace_back();
  orders->failures.push_back({number, why});
}

std::vector<std::pair<int, Orders>> FusionRoot::takeOrders() {
  std::vector<std::pair<int, Orders>> all;
  for (size_t rank = 0; rank < outgoing_.size(); ++rank) {
    for (Orders& orders : outgoing_[rank]) all.emplace_back(static_cast<int>(rank), std::move(orders));
    outgoing_[rank].clear();
  }
  return all;
}

std::vector<std::string> FusionRoot::stalls(TimePoint now, Duration limit) {
  if (now < nextReport_) return {};
  allowHints(now);
  std::vector<std::string> lines;
  size_t more = 0;
  for (auto& [id, tensor] : table_.tensors()) {
    if (!tensor.waits() || tensor.reported || now - tensor.since < limit) continue;
    tensor.reported = true;
    if (lines.size() == kMostReported) {
      ++more;
      continue;
    }
    lines.push_back(textOf(tensor.name, group_) + " has waited for " + toText(now - tensor.since) + ": " +
                    whyIncomplete(tensor));
  }
  if (more > 0)
    lines.push_back("pushPull in " + group_ + ": " + std::to_string(more) + " more tensors wait like these");
  if (!lines.empty()) nextReport_ = now + kReportPause;
  return lines;
}

TimePoint FusionRoot::nextStall(Duration limit) const {
  for (const auto& [id, tensor] : table_.tensors())
    if (tensor.waits() && !tensor.reported)
      return limit >= kNever - tensor.since ? kNever : std::max(nextReport_, tensor.since + limit);
  return kNever;
}

Status FusionRoot::overflow() const {
  if (table_.failed() <= kMostOpenOffers) return {};
  return resourceExhausted("pushPull in " + group_ + ": " + std::to_string(table_.failed()) +
                           " tensors have failed that some members have not offered yet; all members must offer the "
                           "same names, each as often as the others");
}

Status FusionRoot::mismatch(const NamedTensor& tensor, int member, const Signature& theirs) const {
  return invalidArgument(textOf(tensor.name, group_) + " differs: " + namesOf({tensor.first}) + " offers " +
                         describe(tensor.signature) + ", " + namesOf({member}) + " offers " + describe(theirs) +
                         "; all members must offer the same shape, dtype and reduction");
}

std::string FusionRoot::whyIncomplete(const NamedTensor& tensor) {
  return misspelt(tensor) + "it has not been offered by " + namesOf(tensor.missing());
}

// The nearest name that only missing members have offered.
std::string FusionRoot::misspelt(const NamedTensor& tensor) {
  std::vector<std::string_view> candidates;
  for (const auto& [id, other] : table_.tensors()) {
    bool isTheirs = other.waits() && mayBeSimilar(tensor.name, other.name);
    for (int rank = 0; isTheirs && rank < static_cast<int>(members_.size()); ++rank)
      isTheirs = !(other.offeredBy(rank) && tensor.offeredBy(rank));
    const size_t cost = isTheirs ? tensor.name.size() * other.name.size() : 1 + members_.size();
    if (cost > comparisons_) break;
    comparisons_ -= cost;
    if (isTheirs) candidates.push_back(other.name);
  }
  const std::optional<std::string> nearest = nearestName(tensor.name, candidates);
  return nearest ? "other members have offered a similar name, '" + *nearest + "'; " : "";
}

void FusionRoot::allowHints(TimePoint now) {
  if (now - allowed_ < std::chrono::seconds(1)) return;
  allowed_ = now;
  comparisons_ = kComparisons;
}

std::string FusionRoot::namesOf(const std::vector<int>& members) const {
  return listed(members, kMostListed, [this](int rank) { return members_[static_cast<size_t>(rank)]; });
}

}  // namespace treadle::group

// Budget: a look at each connection per piece; no allocation, no lock.

#include "treadle/core/summation/send_order.h"

#include <algorithm>

namespace treadle::summation {

SendOrder::SendOrder(const std::vector<double>& shares, double leadBytes, bool endTogether)
    : leadBytes_(leadBytes), endTogether_(endTogether) {
  for (const double share : shares) flows_.push_back({share});
}

void SendOrder::setShares(const std::vector<double>& shares) {
  for (size_t i = 0; i < flows_.size(); ++i) flows_[i].share = shares[i];
}

void SendOrder::setPending(size_t connection, bool hasBytes) {
  Flow& flow = flows_[connection];
  if (hasBytes && !flow.isPending) {
    const double begin = slowest().value_or(now_);
    flow.time = std::clamp(flow.time, begin, begin + leadBytes_);
  }
  flow.isPending = hasBytes;
}

void SendOrder::setWritable(size_t connection, bool isWritable) {
  Flow& flow = flows_[connection];
  if (isWritable && !flow.isWritable && flow.isPending && !endTogether_)
    flow.time = std::max(flow.time, slowest().value_or(now_));  // or it would have all until it has caught up
  flow.isWritable = isWritable;
}

void SendOrder::sent(size_t connection, uint64_t bytes) {
  Flow& flow = flows_[connection];
  if (flow.share == 0) return;
  now_ = std::max(now_, flow.time);
  flow.time += static_cast<double>(bytes) / flow.share;
}

std::optional<size_t> SendOrder::next() const {
  const std::optional<double> limit = slowest();
  std::optional<size_t> best;
  for (size_t i = 0; i < flows_.size(); ++i) {
    const Flow& flow = flows_[i];
    if (!flow.isPending || !flow.isWritable) continue;
    if (flow.share == 0) return i;
    if (flow.time > *limit + leadBytes_) continue;
    if (!best || flow.time < flows_[*best].time) best = i;
  }
  return best;
}

std::optional<double> SendOrder::slowest() const {
  std::optional<double> least;
  for (const Flow& flow : flows_)
    if (flow.isPending && flow.share > 0 && (endTogether_ || flow.isWritable))
      least = std::min(least.value_or(flow.time), flow.time);
  return least;
}

}  // namespace treadle::summation

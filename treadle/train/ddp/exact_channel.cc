#include "treadle/train/ddp/exact_channel.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "treadle/core/base/error.h"
#include "treadle/tensor/collective/collectives.h"
#include "treadle/train/ddp/any_algorithm.h"
#include "treadle/train/ddp/member_in_words.h"

namespace treadle::ddp {
namespace {

constexpr unsigned kFailedFlag = 1, kActiveFlag = 2, kDoneFlag = 4;
constexpr unsigned kModeShift = 3, kModeMask = 3;  // two bits
constexpr size_t kWeightByte = 1, kElapsedByte = kWeightByte + sizeof(double);
constexpr size_t kAveragesByte = kElapsedByte + sizeof(uint32_t), kReportBytes = kAveragesByte + sizeof(uint64_t);
constexpr size_t kPlaceBytes = sizeof(uint32_t);
constexpr uint8_t kDense = 255, kNoSparseDims = 254;

uint8_t flagsOf(const RankReport& report) {
  unsigned flags = 0;
  if (report.failed) flags |= kFailedFlag;
  if (report.active) flags |= kActiveFlag;
  if (report.join.isDone) flags |= kDoneFlag;
  if (report.join.mode) flags |= (1 + static_cast<unsigned>(*report.join.mode)) << kModeShift;
  return static_cast<uint8_t>(flags);
}

uint32_t inMicroseconds(Duration time) {
  const auto count = std::chrono::duration_cast<std::chrono::microseconds>(time).count();
  return static_cast<uint32_t>(std::clamp<int64_t>(count, 0, std::numeric_limits<uint32_t>::max()));
}

RankReport reportOf(unsigned flags) {
  RankReport report{.failed = (flags & kFailedFlag) != 0, .active = (flags & kActiveFlag) != 0};
  report.join.isDone = (flags & kDoneFlag) != 0;
  const unsigned mode = (flags >> kModeShift) & kModeMask;
  if (mode != 0) report.join.mode = static_cast<UnevenInputs>(mode - 1);
  return report;
}

}  // namespace

ExactChannel::ExactChannel(ProcessGroup group, size_t parameters, size_t buckets, bool carriesOrder)
    : group_(std::move(group)),
      parameters_(parameters),
      buckets_(2 * parameters),
      ranks_(buckets_ + buckets),
      order_(ranks_ + kReportBytes * static_cast<size_t>(group_.size())),
      bytes_(at::zeros({static_cast<int64_t>(order_ + (carriesOrder ? kPlaceBytes * parameters : 0))}, at::kByte)) {}

uint8_t& ExactChannel::at(size_t place) const { return bytes_.data_ptr<uint8_t>()[place]; }

void ExactChannel::renew() { bytes_ = at::zeros_like(bytes_); }

void ExactChannel::markUsed(size_t parameter) { at(parameter) = kDense; }

void ExactChannel::markSparse(size_t parameter, int64_t dims) {
  at(parameter) = std::max(at(parameter), static_cast<uint8_t>(1 + dims));
  at(parameters_ + parameter) = static_cast<uint8_t>(kNoSparseDims - dims);
}

void ExactChannel::markAgain(size_t bucket) { at(buckets_ + bucket) = 1; }

void ExactChannel::markOrder(const std::vector<size_t>& order) {
  uint8_t* place = bytes_.data_ptr<uint8_t>() + order_;
  for (const size_t index : order) {
    const auto marked = static_cast<uint32_t>(index + 1);
    std::memcpy(place, &marked, sizeof marked);
    place += kPlaceBytes;
  }
}

Future<void> ExactChannel::send(const RankReport& own) {
  uint8_t* report = &at(ranks_ + kReportBytes * static_cast<size_t>(group_.rank()));
  *report = flagsOf(own);
  std::memcpy(report + kWeightByte, &own.weight, sizeof own.weight);
  const uint32_t elapsed = inMicroseconds(own.elapsed);
  std::memcpy(report + kElapsedByte, &elapsed, sizeof elapsed);
  std::memcpy(report + kAveragesByte, &own.averages, sizeof own.averages);
  return allReduce(byAnyAlgorithm(group_), bytes_, ReduceOp::kMax);
}

bool ExactChannel::used(size_t parameter) const { return at(parameter) != 0; }

bool ExactChannel::isDense(size_t parameter) const {
  if (at(parameter) == kDense) return true;
  const int fewest = kNoSparseDims - at(parameters_ + parameter);
  return used(parameter) && sparseDims(parameter) != fewest;
}

int64_t ExactChannel::sparseDims(size_t parameter) const { return at(parameter) - 1; }

bool ExactChannel::anyUsed() const { return isAnyMarked(0, parameters_); }

bool ExactChannel::again(size_t bucket) const { return at(buckets_ + bucket) != 0; }

bool ExactChannel::anyAgain() const { return isAnyMarked(buckets_, ranks_); }

bool ExactChannel::isAnyMarked(size_t begin, size_t end) const {
  const uint8_t* bytes = bytes_.const_data_ptr<uint8_t>();
  return std::any_of(bytes + begin, bytes + end, [](uint8_t byte) { return byte != 0; });
}

std::vector<RankReport> ExactChannel::reports() const {
  std::vector<RankReport> reports;
  for (size_t place = ranks_; place < order_; place += kReportBytes) {
    const uint8_t* report = &at(place);
    reports.push_back(reportOf(*report));
    std::memcpy(&reports.back().weight, report + kWeightByte, sizeof(double));
    uint32_t elapsed = 0;
    std::memcpy(&elapsed, report + kElapsedByte, sizeof elapsed);
    reports.back().elapsed = std::chrono::microseconds(elapsed);
    std::memcpy(&reports.back().averages, report + kAveragesByte, sizeof(uint64_t));
  }
  return reports;
}

Result<std::vector<size_t>> ExactChannel::order() const {
  std::vector<size_t> order;
  std::vector<bool> isThere(parameters_);
  const uint8_t* end = bytes_.const_data_ptr<uint8_t>() + bytes_.numel();
  for (const uint8_t* place = bytes_.const_data_ptr<uint8_t>() + order_; place < end; place += kPlaceBytes) {
    uint32_t marked = 0;
    std::memcpy(&marked, place, sizeof marked);
    if (marked == 0 && order.empty()) return order;
    if (marked == 0 || marked > isThere.size() || isThere[marked - 1])
      return failedPrecondition("rank 0 of the group has sent an order that does not have each parameter once");
    isThere[marked - 1] = true;
    order.push_back(marked - 1);
  }
  return order;
}

Status ExactChannel::outcome() const {
  const std::vector<RankReport> all = reports();
  std::vector<size_t> failed;
  for (size_t rank = 0; rank < all.size(); ++rank)
    if (all[rank].failed) failed.push_back(rank);
  if (failed.empty()) return {};
  const std::string more = failed.size() > 1 ? " and on " + std::to_string(failed.size() - 1) + " more" : "";
  return cancelled("the backward pass failed on " + memberInWords(failed.front(), group_) + more +
                   ", so there are no averages of its gradients: see the error there")
      .withWorker(group_.members()[failed.front()]);
}

Status ExactChannel::checkSameAverages() const {
  const std::vector<RankReport> all = reports();
  const auto [fewest, most] = std::ranges::minmax_element(all, {}, &RankReport::averages);
  if (fewest->averages == most->averages) return {};
  const auto rankOf = [&](auto report) { return static_cast<size_t>(report - all.begin()); };
  const auto inWords = [&](auto report) {
    return memberInWords(rankOf(report), group_) + " has made " + std::to_string(report->averages) + " averaged passes";
  };
  return failedPrecondition(inWords(fewest) + ", and " + inWords(most) +
                            ": a pass has failed on some ranks, and the others may have made its step. Call rebind() "
                            "of all modules in the pass with new groups, or load the last checkpoint into a new "
                            "DistributedDataParallel, on all ranks")
      .withWorker(group_.members()[rankOf(fewest)]);
}

}  // namespace treadle::ddp

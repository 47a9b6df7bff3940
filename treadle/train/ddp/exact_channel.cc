#include "treadle/train/ddp/exact_channel.h"

#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "treadle/core/base/error.h"
#include "treadle/tensor/collective/collectives.h"

namespace treadle::ddp {

ExactChannel::ExactChannel(ProcessGroup group, size_t parameters, size_t buckets)
    : group_(std::move(group)),
      buckets_(parameters),
      ranks_(parameters + buckets),
      bytes_(at::zeros({static_cast<int64_t>(ranks_) + group_.size()}, at::kByte)) {}

uint8_t& ExactChannel::at(size_t place) const { return bytes_.data_ptr<uint8_t>()[place]; }

void ExactChannel::renew() { bytes_ = at::zeros_like(bytes_); }

void ExactChannel::markUsed(size_t parameter) { at(parameter) = 1; }

void ExactChannel::markAgain(size_t bucket) { at(buckets_ + bucket) = 1; }

Future<void> ExactChannel::send(bool failed) {
  at(ranks_ + static_cast<size_t>(group_.rank())) = failed ? 1 : 0;
  return allReduce(group_, bytes_, ReduceOp::kMax);
}

bool ExactChannel::used(size_t parameter) const { return at(parameter) != 0; }

bool ExactChannel::again(size_t bucket) const { return at(buckets_ + bucket) != 0; }

Status ExactChannel::outcome() const {
  std::vector<size_t> failed;
  for (size_t rank = 0; rank < static_cast<size_t>(group_.size()); ++rank)
    if (at(ranks_ + rank) != 0) failed.push_back(rank);
  if (failed.empty()) return {};
  const std::string worker = group_.members()[failed.front()];
  const std::string more = failed.size() > 1 ? " and on " + std::to_string(failed.size() - 1) + " more" : "";
  return cancelled("the backward pass failed on worker '" + worker + "' (rank " + std::to_string(failed.front()) +
                   " of the group)" + more + ", so there are no averages of its gradients: see the error there")
      .withWorker(worker);
}

}  // namespace treadle::ddp

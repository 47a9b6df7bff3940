#pragma once
// How parameters are grouped for all-reduce: gradients travel together in buckets of a limited size, in an order that
// is about that in which backward makes them. The first bucket is small (of each dtype and device), so that
// communication begins early. Pure: the result is the same on every rank for the same parameters and order. The scheme
// and its sizes are those of PyTorch's DDP (Li et al. 2020, "PyTorch Distributed: Experiences on Accelerating Data
// Parallel Training", section 3.2).

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace treadle::ddp {

inline constexpr size_t kLargestBucket = size_t{25} << 20, kFirstBucket = size_t{1} << 20;

// Bytes of gradients, the same on all ranks. Larger buckets have less overhead; smaller ones start earlier.
struct BucketLimits {
  // Nothing: kFirstBucket, or `bytes` where that is less.
  std::optional<size_t> firstBytes = {};
  // Nothing: by the network of the group, or kLargestBucket where there is none; small ones for a summation service
  // (bucket_limits.h).
  std::optional<size_t> bytes = {};

  size_t bytesOf(bool isFirst) const;
};

// The reverse order of the parameters: the last layer has its gradients first.
std::vector<size_t> reverseOrder(size_t parameters);

class BucketPlan {
 public:
  struct Place {
    size_t bucket, position;
  };

  // `order` has the index of each parameter at most once; the others travel in no bucket. A bucket holds one dtype of
  // one device. One bucket of each is filled at a time, so the order in which dtypes alternate makes no more buckets.
  // Buckets are in the order of their first parameters. A parameter above the limit has its own bucket.
  BucketPlan(const std::vector<at::Tensor>& parameters, const std::vector<size_t>& order, const BucketLimits& limits);

  // Indexes of parameters, bucket by bucket.
  const std::vector<std::vector<size_t>>& buckets() const { return buckets_; }
  // Nothing: the parameter is in no bucket.
  std::optional<Place> placeOf(size_t parameter) const { return placeOf_[parameter]; }

 private:
  std::vector<std::vector<size_t>> buckets_;
  std::vector<std::optional<Place>> placeOf_;
};

}  // namespace treadle::ddp

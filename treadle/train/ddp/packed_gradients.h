#pragma once
// Some of the gradients of a bucket as one tensor, for those that a hook does not compress. Used within one pass, as
// the bucket is.

#include <vector>

#include "treadle/train/ddp/bucket.h"

namespace treadle::ddp {

// Copies a flat tensor, which has the gradients at these positions one after the other, into the bucket.
void unpackInto(const Bucket& bucket, const std::vector<size_t>& positions, const at::Tensor& flat);

class PackedGradients {
 public:
  // Copies those at these positions of the bucket; takes the bucket's own memory if these are all.
  PackedGradients(const Bucket& bucket, std::vector<size_t> positions);

  bool isEmpty() const { return positions_.empty(); }
  at::Tensor& flat() { return flat_; }
  // Copies them back into the bucket.
  void unpack() const;

 private:
  const Bucket& bucket_;
  std::vector<size_t> positions_;
  at::Tensor flat_;
};

}  // namespace treadle::ddp

#pragma once
// The gradients of one pass that travel in no bucket, and that no hook sees: those whose average is sparse, and those
// that are dense on a rank where sparse ones were expected. They go when the exact channel has come, which says which
// these are: one operation for each, in the order of the parameters. A rank without a gradient adds no rows.
//
// Owned by a GradientExchange, and used under its reducer's lock with grad mode off. It waits for nothing. Memory: per
// pass the sums of the rows of all ranks, which become the gradients.

#include <functional>
#include <vector>

#include "treadle/core/group/group.h"
#include "treadle/train/ddp/exact_channel.h"
#include "treadle/train/ddp/gradient_store.h"
#include "treadle/train/ddp/parameter_list.h"

namespace treadle::ddp {

class SparseExchange {
 public:
  // `list` outlives it.
  SparseExchange(const ParameterList& list, ProcessGroup group);

  // Whether the average of the parameter was sparse when a rank used it the last time. The same on all ranks.
  bool isExpected(size_t parameter) const { return isExpected_[parameter]; }
  // A pass begins.
  void begin();
  // This rank's gradient. InvalidArgument: it cannot be averaged. Nothing reads the indices of a sparse one before.
  Status check(size_t parameter, const OwnGradient& own) const;

  // Once the exact channel has come, whose pass has failed on no rank; the same on all ranks.

  // Returns whether other parameters are expected to have sparse averages from now on.
  bool learn(const ExactChannel& channel);
  // Begins to sum the gradient of a parameter that some rank uses: this rank's `own` rows, or `dense`, which is this
  // rank's gradient where the average is dense.
  Future<void> sumRows(size_t parameter, int64_t sparseDims, const OwnGradient& own);
  Future<void> sum(size_t parameter, at::Tensor dense);
  // Bytes of the values of this rank's rows, and of its dense gradients, that were sent in the pass.
  size_t sentBytes() const { return sentBytes_; }
  // All operations have ended well: their averages, multiplied by `factor`, take the place of gradients. Returns the
  // parameters.
  std::vector<size_t> put(GradientStore& store, const std::function<bool(size_t)>& isMade, double factor);

 private:
  struct Average {
    size_t parameter;
    Future<at::Tensor> sum;
  };

  const at::Tensor& parameter(size_t index) const { return list_.trained()[index]; }
  Status check(size_t parameter, const at::Tensor& gradient) const;
  at::Tensor noRows(size_t parameter, int64_t sparseDims) const;
  Future<void> keep(size_t parameter, Future<at::Tensor> sum);

  const ParameterList& list_;
  const ProcessGroup group_;
  std::vector<bool> isExpected_;
  // These belong to the pass that is under way, or to the last one.
  std::vector<Average> averages_;
  size_t sentBytes_ = 0;
};

}  // namespace treadle::ddp

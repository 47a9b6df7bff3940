#pragma once
// What a worker's part of a context holds for a leaf, also after a failed pass, when the context gives no gradients.

#include "treadle/tensor/autograd/interceptor.h"

namespace treadle::test {

inline at::Tensor keptGradient(Worker& worker, int64_t contextId, const at::Tensor& leaf) {
  return valueOrThrow(autograd::interceptorOf(worker).contexts().find(contextId))->graph->gradient(leaf);
}

}  // namespace treadle::test

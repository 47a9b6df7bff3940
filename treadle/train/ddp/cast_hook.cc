#include "treadle/train/ddp/cast_hook.h"

#include "treadle/core/base/error.h"

namespace treadle {

CastHook::CastHook(at::ScalarType dtype) : dtype_(dtype) {
  if (dtype != at::kHalf && dtype != at::kBFloat16)
    raise(
        invalidArgument(std::string("a CastHook casts to float16 or bfloat16, and was given ") + c10::toString(dtype)));
}

std::string CastHook::description() const { return std::string("CastHook to ") + c10::toString(dtype_); }

Reduction CastHook::reduce(Exchange& exchange, const ddp::Bucket& bucket) {
  const at::ScalarType from = bucket.flat.scalar_type();
  const bool isWide = from == at::kFloat || from == at::kDouble;
  at::Tensor sent = isWide ? bucket.flat.to(dtype_) : bucket.flat;
  co_await exchange.round(allReduce(exchange.group(), sent, ReduceOp::kAverage));
  if (isWide) bucket.flat.copy_(sent);
}

}  // namespace treadle

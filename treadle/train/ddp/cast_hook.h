#pragma once
// Sends gradients as 16-bit floats: half the bytes of float32. Nothing is kept between passes. torch calls its own
// fp16_compress_hook and bf16_compress_hook.

#include "treadle/train/ddp/comm_hook.h"

namespace treadle {

// Each gradient g_r of float32 or float64 is rounded to `dtype`, the average of these is computed in float64, or in
// float32 where members pass on partial sums (core/group/group.h), and rounded once. So the error of the average of W
// ranks, which the divisor then multiplies, is at most
//
//   u (2 + u) mean |g_r| + 2 tiny,  where  u = 2^-11, tiny = 2^-25 for float16,  u = 2^-8, tiny = 2^-134 for bfloat16
//
// and for float64, which is rounded to float32 on the way, another 2^-23 mean |g_r|; for partial sums in float32 once
// more as much, and these are infinite from 2^128 on. From 65520 on a float16 is
// infinite, on all ranks: a GradScaler, which scales the losses, skips such steps. Gradients of other dtypes are
// averaged as they are.
//
// In training, the loss of each of 50 steps of a small network differs from that of one process on the whole batch by
// at most u / 10 of the first loss: 5e-5 of it for float16, 4e-4 for bfloat16. With a GradScaler this holds also for
// gradients that are too small for float16 (tests/train/ddp/losses_test.cc).
class CastHook final : public CommHook {
 public:
  // kHalf or kBFloat16. ArgumentError for others.
  explicit CastHook(at::ScalarType dtype);

  std::string description() const override;
  Reduction reduce(Exchange& exchange, const ddp::Bucket& bucket) override;

 private:
  const at::ScalarType dtype_;
};

}  // namespace treadle

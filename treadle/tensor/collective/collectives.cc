#include "treadle/tensor/collective/collectives.h"

#include <ATen/core/grad_mode.h>

#include <memory>

#include "treadle/core/base/error.h"

namespace treadle {
namespace {

// Only what core/group adds up itself: it has no bool, no complex numbers and no 8-bit floats.
group::DataType dataTypeOf(at::ScalarType type) {
  switch (type) {
    case at::kHalf: return group::DataType::kFloat16;
    case at::kBFloat16: return group::DataType::kBFloat16;
    case at::kFloat: return group::DataType::kFloat32;
    case at::kDouble: return group::DataType::kFloat64;
    case at::kChar: return group::DataType::kInt8;
    case at::kShort: return group::DataType::kInt16;
    case at::kInt: return group::DataType::kInt32;
    case at::kLong: return group::DataType::kInt64;
    case at::kByte: return group::DataType::kUint8;
    default: break;
  }
  raise(invalidArgument(std::string("a tensor of dtype ") + c10::toString(type) + " cannot be reduced"));
}

void checkDense(const at::Tensor& tensor) {
  bool dense = tensor.defined() && tensor.layout() == at::kStrided && tensor.device().is_cpu();
  if (!dense) raise(invalidArgument("collectives take dense tensors on the CPU"));
}

// Runs `operate` on memory that lies in one piece: the tensor's own where it does, else a copy that is copied
// back.
template <class Operate>
Future<void> onContiguous(at::Tensor& tensor, Operate operate) {
  checkDense(tensor);
  // A parameter may be given: the operation is not part of any graph.
  at::Tensor target = tensor.detach();
  // What is sent are the numbers themselves and not what lies behind a conjugated or negated view of them.
  at::Tensor flat = target.resolve_conj().resolve_neg().contiguous();
  Future<void> done = operate(flat);
  if (flat.is_same(target) || flat.data_ptr() == target.data_ptr()) {
    // No `then`: its future would become ready on a thread of the pool, later than the operation.
    sharedStateOf(done)->onReady([flat] {});  // alive until then
    return done;
  }
  return done.then([flat, target]() mutable {
    // On a thread of the pool, whose grad mode is whatever its last handler left.
    at::NoGradGuard noGrad;
    target.copy_(flat);
  });
}

}  // namespace

Future<void> allReduce(const ProcessGroup& group, at::Tensor& tensor, ReduceOp op) {
  return onContiguous(tensor, [&](at::Tensor& flat) {
    return group::allReduce(group, flat.data_ptr(), static_cast<size_t>(flat.numel()), dataTypeOf(flat.scalar_type()),
                            op);
  });
}

Future<void> broadcast(const ProcessGroup& group, at::Tensor& tensor, int root) {
  return onContiguous(tensor, [&](at::Tensor& flat) {
    return group::broadcast(group, MutableBytes(static_cast<std::byte*>(flat.data_ptr()), flat.nbytes()), root);
  });
}

}  // namespace treadle

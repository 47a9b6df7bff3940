#pragma once
// What an interceptor that cares for tensors is told by the tensor codec: which tensors a message holds, in
// order. Both ends count alike (undefined tensors too), so that an index means the same tensor to sender and
// receiver. Distributed autograd implements these. A hook belongs to one message and is used by the thread
// that encodes or decodes it.

#include <ATen/core/Tensor.h>

#include "treadle/core/rpc/interceptor.h"

namespace treadle::bridge {

class OutgoingTensorHook : public rpc::OutgoingHook {
 public:
  // `tensor` is in the message, as the user gave it (before it was made contiguous). May be undefined.
  virtual void add(const at::Tensor& tensor) = 0;
};

class IncomingTensorHook : public rpc::IncomingHook {
 public:
  // `tensor` was in the message. It shares its implementation with what the receiver will hold.
  virtual void add(const at::Tensor& tensor) = 0;
};

}  // namespace treadle::bridge

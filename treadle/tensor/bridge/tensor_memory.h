#pragma once
// The memory of tensors that travel without a copy. A received tensor lies in a block of the core's, which is freed
// with the last tensor over it. `treadle::emptyShared` makes tensors in such blocks. A tensor that has no other holder
// may be given to another worker on the same host without a copy (Buffer::given). Any thread. Budget of `emptyShared`:
// that of a block (core/memory/block_pool.h) and three allocations.

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include "treadle/core/base/buffer.h"

namespace treadle {

// An uninitialised CPU tensor of `sizes` in memory that workers on this host share. When it is given away (as an rvalue
// argument or a result, with no other reference to it or its storage) it travels to them without a copy. `options`:
// dtype and requiresGrad; ArgumentError for another device or layout. Falls back to ordinary memory when no shared
// memory is available.
at::Tensor emptyShared(at::IntArrayRef sizes, at::TensorOptions options = {});

// Whether all new CPU tensors of this process of 16 KiB or more lie in such memory, so that results of ordinary
// operations travel without a copy too. Applies to the whole process, because libtorch has one CPU allocator; call it
// before other threads make tensors. Existing tensors keep their memory.
void useSharedAllocator(bool use);

}  // namespace treadle

namespace treadle::bridge {

// From now on libtorch's CPU tensors of 64 KiB and more lie in the process's warm cache (core/memory/warm_cache.h),
// unless useSharedAllocator is on, or the program has set its own CPU allocator. Applies to the whole process.
void useWarmAllocator();

// A contiguous tensor over the bytes of `buffer`, which must own exactly as many bytes as the tensor needs.
at::Tensor tensorOver(Buffer buffer, at::IntArrayRef sizes, at::ScalarType type);

// The memory of `tensor` when nothing else can see it: no other tensor and no weak holder. Null otherwise, and when the
// tensor does not cover its memory from the start or lies in libtorch's ordinary memory.
std::shared_ptr<Memory> memoryToGive(const at::Tensor& tensor);

}  // namespace treadle::bridge

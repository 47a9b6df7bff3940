#pragma once
// The memory of tensors that travel without a copy. A received tensor lies in a block of the core's, which goes with
// the last tensor over it; `treadle::empty` makes tensors over such blocks, and one that nobody else holds may be given
// to another worker on the same host as it is (Buffer::given). Any thread. Budget of `empty`: that of a block
// (core/memory/block_pool.h) and three allocations.

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include "treadle/core/base/buffer.h"

namespace treadle {

// An uninitialised tensor of `sizes` on the CPU in memory that workers on this host share: given away (as an rvalue
// argument or a result, when nothing else refers to it or to its storage) it travels to them without a copy. `options`:
// dtype, and requiresGrad; ArgumentError for another device or layout. Ordinary memory when no shared memory is to be
// had.
at::Tensor empty(at::IntArrayRef sizes, at::TensorOptions options = {});

// From now on (true), or no longer, all new CPU tensors of this process that take 16 KiB or more lie in such memory, so
// that results of ordinary operations travel without a copy too. Process-wide, as libtorch has one CPU allocator; call
// it before other threads make tensors. Tensors keep the memory they have.
void useSharedAllocator(bool use);

}  // namespace treadle

namespace treadle::bridge {

// From now on libtorch's CPU tensors of 64 KiB and more lie in the process's warm cache (core/memory/warm_cache.h),
// unless useSharedAllocator is on, or the program has set a CPU allocator of its own. Process-wide.
void useWarmAllocator();

// A contiguous tensor over the bytes of `buffer`, which are exactly as many as it needs and are owned.
at::Tensor tensorOver(Buffer buffer, at::IntArrayRef sizes, at::ScalarType type);

// What the bytes of `tensor` live in when nobody else can see them: neither another tensor nor a weak holder. Null when
// somebody can, when it does not cover its memory from the start, or when it is ordinary memory of libtorch.
std::shared_ptr<Memory> memoryToGive(const at::Tensor& tensor);

}  // namespace treadle::bridge

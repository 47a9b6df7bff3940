#include "treadle/tensor/bridge/tensor_memory.h"

#include <ATen/ops/empty.h>
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/Storage.h>
#include <c10/core/TensorImpl.h>

#include "treadle/core/base/error.h"
#include "treadle/core/memory/block_pool.h"
#include "treadle/core/memory/warm_cache.h"

namespace treadle {
namespace {

// What a storage of ours keeps alive; its address tells such a storage from others.
struct Held {
  std::shared_ptr<Memory> memory;
};

void dropHeld(void* held) { delete static_cast<Held*>(held); }

c10::DataPtr dataOf(std::byte* data, std::shared_ptr<Memory> memory) {
  return {data, new Held{std::move(memory)}, &dropHeld, at::kCPU};
}

// For what is large enough to travel beside a message; null for the rest, and when there is none left.
std::shared_ptr<memory::Block> blockFor(size_t sizeBytes) {
  memory::BlockPool* pool = memory::BlockPool::ofProcess();
  return pool != nullptr && sizeBytes >= memory::kSmallestBlock ? pool->allocate(sizeBytes) : nullptr;
}

// Blocks, and libtorch's own memory for the rest.
class SharedAllocator final : public c10::Allocator {
 public:
  explicit SharedAllocator(c10::Allocator& otherwise) : otherwise_(otherwise) {}

  c10::DataPtr allocate(size_t sizeBytes) override {
    auto block = blockFor(sizeBytes);
    if (!block) return otherwise_.allocate(sizeBytes);
    std::byte* data = block->data();
    return dataOf(data, std::move(block));
  }
  void copy_data(void* to, const void* from, size_t sizeBytes) const override {
    default_copy_data(to, from, sizeBytes);
  }

 private:
  c10::Allocator& otherwise_;
};

// Memory of either kind: `raw_deallocate` has one deleter for both.
void giveToOwner(void* data) {
  if (!memory::WarmCache::ofProcess().give(static_cast<std::byte*>(data)))
    c10::GetDefaultCPUAllocator()->raw_deallocate(data);
}

// The process's warm cache, and libtorch's own memory for small sizes and where the cache has none.
class WarmAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t sizeBytes) override {
    const bool large = sizeBytes >= memory::WarmCache::kSmallest;
    std::byte* data = large ? memory::WarmCache::ofProcess().take(sizeBytes) : nullptr;
    if (data == nullptr) return c10::GetDefaultCPUAllocator()->allocate(sizeBytes);
    return {data, data, &giveToOwner, at::kCPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &giveToOwner; }
  void copy_data(void* to, const void* from, size_t sizeBytes) const override {
    default_copy_data(to, from, sizeBytes);
  }
};

// libtorch's allocator of this process is the shared one while that is asked for, else the warm one once that is, else
// what it was before either.
class AllocatorChoice {
 public:
  // Never destroyed: tensors may be the last things that a process destroys.
  static AllocatorChoice& ofProcess() {
    static auto* const choice = new AllocatorChoice;  // NOLINT: as long as the process
    return *choice;
  }
  void useShared(bool use) {
    MutexLock lock(mutex_);
    shares_ = use;
    apply();
  }
  // A program that brought an allocator of its own keeps it.
  void useWarm() {
    MutexLock lock(mutex_);
    const c10::Allocator* now = c10::GetCPUAllocator();
    if (&own_ != c10::GetDefaultCPUAllocator() || (now != &own_ && now != &sharedAllocator_)) return;
    warm_ = true;
    apply();
  }

 private:
  AllocatorChoice() : own_(*c10::GetCPUAllocator()), sharedAllocator_(own_) {}
  void apply() TREADLE_REQUIRES(mutex_) {
    c10::Allocator* wanted = &own_;
    if (warm_) wanted = &warmAllocator_;
    if (shares_) wanted = &sharedAllocator_;
    c10::SetCPUAllocator(wanted);
  }

  c10::Allocator& own_;
  SharedAllocator sharedAllocator_;
  WarmAllocator warmAllocator_;
  Mutex mutex_;
  bool shares_ TREADLE_GUARDED_BY(mutex_) = false;
  bool warm_ TREADLE_GUARDED_BY(mutex_) = false;
};

}  // namespace

at::Tensor emptyShared(at::IntArrayRef sizes, at::TensorOptions options) {
  if (options.device().type() != at::kCPU || options.layout() != at::kStrided)
    raise(invalidArgument("treadle::emptyShared makes dense tensors on the CPU; use at::empty for others"));
  auto type = c10::typeMetaToScalarType(options.dtype());
  size_t bytes = c10::elementSize(type);
  for (int64_t size : sizes) {
    if (size < 0) raise(invalidArgument("a tensor cannot have a negative size"));
    if (__builtin_mul_overflow(bytes, static_cast<size_t>(size), &bytes))
      raise(invalidArgument("a tensor of these sizes is too large to exist"));
  }
  auto block = blockFor(bytes);
  if (!block) return at::empty(sizes, options);
  std::byte* data = block->data();
  at::Tensor tensor = bridge::tensorOver({data, bytes, std::move(block)}, sizes, type);
  return options.requires_grad() ? tensor.set_requires_grad(true) : tensor;
}

void useSharedAllocator(bool use) { AllocatorChoice::ofProcess().useShared(use); }

}  // namespace treadle

namespace treadle::bridge {

void useWarmAllocator() { AllocatorChoice::ofProcess().useWarm(); }

at::Tensor tensorOver(Buffer buffer, at::IntArrayRef sizes, at::ScalarType type) {
  c10::Storage storage(c10::Storage::use_byte_size_t(), buffer.sizeBytes, dataOf(buffer.data, std::move(buffer.owner)),
                       nullptr, false);
  at::Tensor tensor = at::detail::make_tensor<at::TensorImpl>(
      std::move(storage), at::DispatchKeySet(at::DispatchKey::CPU), c10::scalarTypeToTypeMeta(type));
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

std::shared_ptr<Memory> memoryToGive(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  if (storage.data_ptr().get_deleter() != &dropHeld) return nullptr;
  bool asItIs = tensor.is_contiguous() && tensor.storage_offset() == 0 && !tensor.is_conj() && !tensor.is_neg();
  // A weak holder counts itself, and all strong ones together count as one more.
  bool alone = tensor.use_count() == 1 && tensor.weak_use_count() == 1 && storage.use_count() == 1 &&
               storage.getWeakStorageImpl().weak_use_count() == 2;
  return asItIs && alone ? static_cast<Held*>(storage.data_ptr().get_context())->memory : nullptr;
}

}  // namespace treadle::bridge

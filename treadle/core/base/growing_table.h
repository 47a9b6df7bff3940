#pragma once
// A table by small whole numbers, such as ranks, that grows while other threads look things up in it: an entry is made
// when it is first asked for, stays where it is, and goes with the table. Any thread. Budget of a look-up: two loads.

#include <array>
#include <atomic>
#include <functional>
#include <memory>

#include "treadle/core/base/check.h"

namespace treadle::base {

template <class T>
class GrowingTable {
 public:
  static constexpr size_t kCapacity = 65'536;

  // `make(i)` makes entry i, on the thread that asks for it first; of two that do so at once one entry is dropped.
  using Make = std::function<std::unique_ptr<T>(size_t i)>;
  explicit GrowingTable(Make make) : make_(std::move(make)) {}
  ~GrowingTable() {
    for (auto& chunk : chunks_) {
      Chunk* there = chunk.load();
      if (there == nullptr) continue;
      for (auto& entry : *there) delete entry.load();
      delete there;
    }
  }
  GrowingTable(const GrowingTable&) = delete;
  GrowingTable& operator=(const GrowingTable&) = delete;

  T& operator[](size_t i) {
    TREADLE_CHECK(i < kCapacity, "a number beyond the table");
    Chunk& chunk = *getOrMake(chunks_[i / kChunk], [] { return std::make_unique<Chunk>(); });
    return *getOrMake(chunk[i % kChunk], [&] { return make_(i); });
  }

  // `f(entry)` for each entry that was made so far.
  template <class F>
  void forEach(F f) const {
    for (const auto& chunk : chunks_) {
      Chunk* there = chunk.load(std::memory_order_acquire);
      if (there == nullptr) continue;
      for (auto& entry : *there)
        if (T* made = entry.load(std::memory_order_acquire); made != nullptr) f(*made);
    }
  }

 private:
  static constexpr size_t kChunk = 256;
  using Chunk = std::array<std::atomic<T*>, kChunk>;

  template <class U, class F>
  static U* getOrMake(std::atomic<U*>& place, F make) {
    U* there = place.load(std::memory_order_acquire);
    if (there != nullptr) return there;
    std::unique_ptr<U> made = make();
    if (place.compare_exchange_strong(there, made.get(), std::memory_order_acq_rel)) return made.release();
    return there;
  }

  const Make make_;
  std::array<std::atomic<Chunk*>, kCapacity / kChunk> chunks_{};
};

}  // namespace treadle::base

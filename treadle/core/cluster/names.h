#pragma once
// The ranks of workers by their names, looked up while workers come. Names are never removed. In an open job workers
// may have a name one after the other. Any thread.
//
// Budget of a look-up: one hash, and a comparison for each worker, also each that is gone, in the same one of 1,024
// buckets. No lock and no allocation.

#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "treadle/core/base/mutex.h"

namespace treadle::cluster {

class Names {
 public:
  Names() = default;
  ~Names();
  Names(const Names&) = delete;
  Names& operator=(const Names&) = delete;

  // Once for each rank.
  void add(std::string_view name, int rank);

  // The highest rank of that name for which `isWanted(rank)` holds.
  template <class F>
  std::optional<int> find(std::string_view name, F isWanted) const {
    for (const Entry* entry = bucketOf(name).load(std::memory_order_acquire); entry != nullptr;
         entry = entry->next.load(std::memory_order_acquire))
      if (entry->name == name && isWanted(entry->rank)) return entry->rank;
    return std::nullopt;
  }

 private:
  struct Entry {
    const std::string name;
    const int rank;
    std::atomic<Entry*> next = nullptr;
  };
  using Bucket = std::atomic<Entry*>;

  const Bucket& bucketOf(std::string_view name) const {
    return buckets_[std::hash<std::string_view>()(name) % buckets_.size()];
  }

  Mutex adding_;
  std::array<Bucket, 1024> buckets_{};  // each a list from the highest rank to the lowest
};

}  // namespace treadle::cluster

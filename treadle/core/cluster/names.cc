#include "treadle/core/cluster/names.h"

#include <utility>

namespace treadle::cluster {

Names::~Names() {
  for (Bucket& bucket : buckets_)
    for (Entry* entry = bucket.load(); entry != nullptr;) delete std::exchange(entry, entry->next.load());
}

void Names::add(std::string_view name, int rank) {
  std::unique_ptr<Entry> entry(new Entry{std::string(name), rank, {}});
  MutexLock lock(adding_);
  Bucket* place = const_cast<Bucket*>(&bucketOf(name));
  while (place->load() != nullptr && place->load()->rank > rank) place = &place->load()->next;
  entry->next.store(place->load());
  place->store(entry.release(), std::memory_order_release);
}

}  // namespace treadle::cluster

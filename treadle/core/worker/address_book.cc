#include "treadle/core/worker/address_book.h"

namespace treadle {

void AddressBook::add(const cluster::RosterEntry& entry) {
  MutexLock lock(mutex_);
  known_[entry.worker.rank].entry = entry;
}

cluster::RosterEntry AddressBook::entry(int rank) const {
  MutexLock lock(mutex_);
  auto found = known_.find(rank);
  return found == known_.end() ? cluster::RosterEntry() : found->second.entry;
}

cluster::Roster AddressBook::entries(const std::vector<int>& ranks) const {
  cluster::Roster roster;
  for (int rank : ranks) roster.push_back(entry(rank));
  return roster;
}

void AddressBook::noteFailures(int rank, Failures failures) {
  MutexLock lock(mutex_);
  known_[rank].failures = std::move(failures);
}

AddressBook::Failures AddressBook::failures(int rank) const {
  MutexLock lock(mutex_);
  auto found = known_.find(rank);
  return found == known_.end() ? Failures() : found->second.failures;
}

}  // namespace treadle

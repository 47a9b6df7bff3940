#pragma once
// Where the other workers listen, and why some of those addresses could not be connected to. Any thread.

#include <map>
#include <string>

#include "treadle/core/base/mutex.h"
#include "treadle/core/cluster/rendezvous.h"

namespace treadle {

class AddressBook {
 public:
  // Of addresses that come before the one in use.
  struct Failures {
    std::string unixSockets, tcp;
  };

  void add(const cluster::RosterEntry& entry);
  // With no addresses for a worker that is not in it.
  cluster::RosterEntry entry(int rank) const;
  cluster::Roster entries(const std::vector<int>& ranks) const;

  void noteFailures(int rank, Failures failures);
  Failures failures(int rank) const;

 private:
  struct Known {
    cluster::RosterEntry entry;
    Failures failures;
  };

  mutable Mutex mutex_;
  std::map<int, Known> known_ TREADLE_GUARDED_BY(mutex_);  // by rank
};

}  // namespace treadle

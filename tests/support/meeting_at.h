#pragma once
// Where tests meet: addresses that are known from the start.

#include "treadle/core/cluster/rendezvous.h"

namespace treadle::test {

inline cluster::MasterAddresses meetingAt(std::vector<io::Address> addresses) {
  return [addresses = std::move(addresses)]() -> Result<std::vector<io::Address>> { return addresses; };
}

}  // namespace treadle::test

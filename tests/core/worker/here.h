#pragma once
// An object of the test as an argument of remote calls: all workers of these tests live in its process, where
// its address is all that has to travel. It is how handlers meet the test's gates and counters without global
// variables.

#include <tuple>

#include "tests/support/gate.h"
#include "tests/support/worker_job.h"

namespace treadle::test {

template <class T>
struct Here {
  Here() = default;
  // From a const reference, as calls take their arguments, also of objects that are none.
  Here(const T& object) : address(reinterpret_cast<uint64_t>(&object)) {}  // NOLINT: implicit
  T* operator->() const { return reinterpret_cast<T*>(address); }

  uint64_t address = 0;
};

template <class T>
auto fields(Here<T>& here) {
  return std::tie(here.address);
}

// Handlers that several tests want.
inline void openGate(Here<Gate> gate) { gate->open(); }
// Counts at `arrived`, then waits, and says so to the pool, until `gate` is open.
inline void waitAtGate(Here<Counter> arrived, Here<Gate> gate) {
  arrived->add();
  blocking([&] { gate->wait(); });
}

}  // namespace treadle::test

#include "treadle/core/summation/adder.h"

#include "treadle/core/summation/asynchronous_adder.h"
#include "treadle/core/summation/synchronous_adder.h"

namespace treadle::summation {

std::unique_ptr<Adder> Adder::make(const Declaration& declaration, Machine machine, uint64_t grantBytes) {
  if (declaration.mode.isAsynchronous) return std::make_unique<AsynchronousAdder>(declaration, machine, grantBytes);
  return std::make_unique<SynchronousAdder>(declaration, machine, grantBytes);
}

}  // namespace treadle::summation

// What the two workers call on each other.
#include <unistd.h>

#include <fstream>

#include "bench/ours/cases.h"

namespace bench {

void nothing() {}
at::Tensor identity(at::Tensor tensor) { return tensor; }
int64_t fetched(const treadle::RRef<at::Tensor>& tensor) { return tensor.toHere().numel(); }

int64_t residentBytes() {
  std::ifstream file("/proc/self/statm");
  int64_t all = 0, resident = 0;
  file >> all >> resident;
  return resident * ::sysconf(_SC_PAGESIZE);
}

int64_t peakBytes() {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}

void resetPeak() { std::ofstream("/proc/self/clear_refs") << "5"; }

treadle::Functions served() {
  return treadle::Functions()
      .add<&nothing>("nothing")
      .add<&identity>("identity")
      .add<&fetched>("fetched")
      .add<&residentBytes>("residentBytes")
      .add<&peakBytes>("peakBytes")
      .add<&resetPeak>("resetPeak");
}

}  // namespace bench

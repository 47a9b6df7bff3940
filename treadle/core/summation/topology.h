#pragma once
// A machine with several GPUs: PCIe switches at the CPU, a GPU or a NIC at each of their ports, and NVLinks between
// GPUs. Plain values, which `treadle plan --machine` reads from a file. A bandwidth is in bytes per second and
// direction.

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace treadle::summation {

struct Topology {
  // The bandwidth of a link whose file gives none: it takes no time.
  static constexpr double kUnlimited = std::numeric_limits<double>::infinity();

  // Switches and GPUs are referred to by their index.
  struct Switch {
    std::string name;
    double uplink = 0;  // to the CPU
  };
  struct Gpu {
    std::string name;
    size_t underSwitch = 0;
    double link = 0;  // to its switch
  };
  struct Nic {
    std::string name;
    std::optional<size_t> underSwitch = {};  // none: at the CPU
    double link = kUnlimited;
  };
  struct NvLink {
    size_t first = 0, second = 0;
    double link = 0;
  };

  std::vector<Switch> switches;
  std::vector<Gpu> gpus;  // at least one
  std::vector<Nic> nics;
  std::vector<NvLink> nvlinks;  // at most one between two GPUs
  double memory = kUnlimited;   // of the CPU, to read, and as much to write

  // In ascending order.
  std::vector<size_t> gpusUnder(size_t switchIndex) const {
    std::vector<size_t> under;
    for (size_t gpu = 0; gpu < gpus.size(); ++gpu)
      if (gpus[gpu].underSwitch == switchIndex) under.push_back(gpu);
    return under;
  }
};

}  // namespace treadle::summation

#pragma once
// A machine with several GPUs, as a file describes it: PCIe switches at the CPU, a GPU or a NIC at each of their ports,
// and NVLinks between GPUs. Plain values, and a pure parser of JSON:
//
//   {"switches": [{"name": "s0", "uplink": 10}],
//    "gpus":     [{"name": "g0", "switch": "s0", "link": 13.1}, {"name": "g1", "switch": "s0", "link": 13.1}],
//    "nics":     [{"name": "n0", "switch": "s0", "link": 12.5}],
//    "nvlinks":  [{"gpus": ["g0", "g1"], "link": 25}],
//    "memory":   60}
//
// A bandwidth is in GB/s, 10^9 bytes per second and direction. `nics`, `nvlinks`, `memory` and the `link` of a NIC may
// be left out. A NIC without a `switch` is at the CPU. An entry of `nvlinks` is a link between each two of its GPUs.

#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "treadle/core/base/status.h"

namespace treadle::summation {

struct Topology {
  // Of a link whose bandwidth the file leaves out: it takes no time.
  static constexpr double kUnlimited = std::numeric_limits<double>::infinity();

  // Bandwidths are in bytes per second and direction. Switches and GPUs are named by their index.
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

  // In their order.
  std::vector<size_t> gpusUnder(size_t one) const;
};

inline constexpr size_t kMostTopologyBytes = size_t{1} << 20;
inline constexpr size_t kMostDevices = 64;  // of each kind

// InvalidArgument names the field that is wrong.
Result<Topology> parseTopology(std::string_view json);

}  // namespace treadle::summation

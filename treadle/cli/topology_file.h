#pragma once
// The description of a machine with several GPUs in JSON, which `treadle plan --machine` reads:
//
//   {"switches": [{"name": "s0", "uplink": 10}],
//    "gpus":     [{"name": "g0", "switch": "s0", "link": 13.1}, {"name": "g1", "switch": "s0", "link": 13.1}],
//    "nics":     [{"name": "n0", "switch": "s0", "link": 12.5}],
//    "nvlinks":  [{"gpus": ["g0", "g1"], "link": 25}],
//    "memory":   60}
//
// A bandwidth is in GB/s, 10^9 bytes per second and direction. `nics`, `nvlinks`, `memory` and the `link` of a NIC may
// be left out. A NIC without a `switch` is at the CPU. An entry of `nvlinks` is a link between each two of its GPUs.

#include <string_view>

#include "treadle/core/base/status.h"
#include "treadle/core/summation/topology.h"

namespace treadle::cli {

inline constexpr size_t kMostTopologyBytes = size_t{1} << 20;
inline constexpr size_t kMostDevices = 64;  // of each kind

// InvalidArgument names the field that is wrong. Pure.
Result<summation::Topology> parseTopology(std::string_view json);

}  // namespace treadle::cli

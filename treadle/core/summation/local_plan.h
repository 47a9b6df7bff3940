#pragma once
// How the GPUs of one machine would sum: which transfers, in which order, and the time that its links need for them.
// Source of the rules: Y. Jiang et al., "A Unified Architecture for Accelerating Distributed DNN Training in
// Heterogeneous GPU/CPU Clusters", OSDI 2020, section 4.2; docs/rooms/summation.md has the formulas. Pure: it drives no
// GPU.
//
// Each GPU has M bytes, and all of them end with the sum. Where the machine has NICs, the sum passes CPU memory, the
// network and CPU memory again before that.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "treadle/core/summation/topology.h"

namespace treadle::summation {

// Where bytes can be: on a GPU, in CPU memory (a buffer for each switch, and one for the sum), or behind a NIC.
struct LocalPlace {
  enum class Kind : uint8_t { kGpu, kAddend, kSum, kNic };

  Kind kind = Kind::kSum;
  size_t index = 0;  // of the GPU, the switch or the NIC

  bool isMemory() const { return kind == Kind::kAddend || kind == Kind::kSum; }
  bool operator==(const LocalPlace&) const = default;
};

// Bytes [begin, end) go from one place to the same bytes of another.
struct LocalTransfer {
  LocalPlace from, to;
  uint64_t begin = 0, end = 0;
  bool adds = false;                  // to what is there, and does not replace it
  std::optional<size_t> nvlink = {};  // none: over PCIe

  uint64_t bytes() const { return end - begin; }
};

struct LocalStep {
  std::string what;
  std::vector<LocalTransfer> transfers;  // one after the other they give the sum
};

// What a link carries in each direction.
struct LinkLoad {
  std::string first, second;  // its ends; of a PCIe link the second one is nearer to the CPU
  double bandwidth = 0;       // bytes per second and direction
  uint64_t up = 0, down = 0;  // to the second end, and from it

  double seconds() const;
};

struct LocalWay {
  std::string name;
  std::vector<LocalStep> steps;
  std::vector<LinkLoad> links;  // GPUs, switches, NICs, memory, NVLinks, each in the order of the topology

  // As long as the busiest link needs: parts of the data go through all steps at the same time.
  double seconds() const { return bottleneck().seconds(); }
  const LinkLoad& bottleneck() const;
};

struct LocalPlan {
  std::vector<LocalWay> ways;  // the chosen one first; the ring is always there
  std::string why;
  std::vector<std::string> notes;

  const LocalWay& chosen() const { return ways.front(); }
};

inline constexpr const char* kNvLinkWay = "nvlink";
inline constexpr const char* kSharedNvLinkWay = "nvlink, shared";  // with the NIC's switch, to compare
inline constexpr const char* kCpuAssistedWay = "cpu-assisted";
inline constexpr const char* kRingWay = "ring";

inline constexpr uint64_t kMostLocalBytes = uint64_t{1} << 50;

// Of a topology as `parseTopology` gives it, and at most `kMostLocalBytes`.
LocalPlan planLocally(const Topology& topology, uint64_t bytes);

}  // namespace treadle::summation

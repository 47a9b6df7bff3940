#pragma once
// Plans how the GPUs of one machine sum: which transfers, in which order, and the time that the links need for them.
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
};

// Bytes [begin, end) go from one place to the same bytes of another.
struct LocalTransfer {
  LocalPlace from, to;
  uint64_t begin = 0, end = 0;
  bool adds = false;                  // to the bytes at `to`; otherwise replaces them
  std::optional<size_t> nvlink = {};  // none: over PCIe

  uint64_t bytes() const { return end - begin; }
};

struct LocalStep {
  std::string what;
  std::vector<LocalTransfer> transfers;  // executed one after the other, they give the sum
};

// The bytes that a link carries in each direction.
struct LinkLoad {
  std::string first, second;  // its ends; the second one is nearer to the CPU, except for NVLinks
  double bandwidth = 0;       // bytes per second and direction
  uint64_t up = 0, down = 0;  // to the second end, and from it

  double seconds() const;
};

// In the order: GPUs, switches, NICs, memory, NVLinks, each in the order of the topology.
std::vector<LinkLoad> loadsOf(const Topology& topology, const std::vector<LocalStep>& steps);

struct LocalStrategy {
  std::string name;
  std::vector<LocalStep> steps;
  std::vector<LinkLoad> links;  // loadsOf(topology, steps)

  // The busiest link sets the time: the steps overlap, each on another part of the data.
  double seconds() const { return busiest().seconds(); }
  const LinkLoad& busiest() const;
};

struct LocalPlan {
  std::vector<LocalStrategy> strategies;  // the chosen one first; the ring is always there
  std::string why;
  std::vector<std::string> notes;

  const LocalStrategy& chosen() const { return strategies.front(); }
};

inline constexpr const char* kNvLinkStrategy = "nvlink";
inline constexpr const char* kCpuAssistedStrategy = "cpu-assisted";
inline constexpr const char* kRingStrategy = "ring";

inline constexpr uint64_t kMostLocalBytes = uint64_t{1} << 50;

// `bytes` is at most `kMostLocalBytes`.
LocalPlan planLocally(const Topology& topology, uint64_t bytes);

// The sum over NVLinks, which must connect all GPUs. Each GPU of `roots` gathers an equal part of the sum.
LocalStrategy nvLinkStrategy(const Topology& topology, uint64_t bytes, const std::vector<size_t>& roots);

}  // namespace treadle::summation

#pragma once
// What it costs to move data between the workers of a job, in numbers. Collective operations choose by them how they
// move their data (core/group/prediction.h). All workers of a job have the same: rank 0 measures them while the workers
// meet (cost_survey.h) and sends them to all. Plain values and pure functions.

#include <cstdint>
#include <string>
#include <string_view>

#include "treadle/core/base/clock.h"
#include "treadle/core/base/status.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::cluster {

// The model of R. Hockney ("The communication challenge for MPP", 1994): a message of s bytes takes latency + s /
// bandwidth.
struct LinkCosts {
  double latency = 0;    // seconds: half of the fastest round trip of an empty message
  double bandwidth = 0;  // bytes per second, for large data

  bool operator==(const LinkCosts&) const = default;
};

// The defaults of a host were measured on the machine of docs/benchmarks.md. Those between hosts are for Ethernet with
// 10 Gbit/s: that host's latency and the 10 us which NIC, wire and kernel take at least (S. Larsen et al.,
// "Architectural breakdown of end-to-end latency in a TCP/IP network", 2009); of 1538 bytes on the wire TCP carries
// 1448.
struct Costs {
  LinkCosts sameHost{8e-6, 6e9};  // its bandwidth is that of one core which copies each byte in and takes it out
  LinkCosts betweenHosts{18e-6, 1.18e9};
  double message = 10e-6;  // seconds of processor time for one message
  uint32_t cores = 2;      // of each host; its workers share them

  bool operator==(const Costs&) const = default;
};

// How long rank 0 measures. Three round trips to each kind of workers may last longer: for these it waits
// kSurveyPatience more at most.
inline constexpr Duration kSurveyTime = std::chrono::milliseconds(10), kSurveyPatience = std::chrono::milliseconds(300);

// Each number is above 0 and within reason: times from 1 ps to 1000 s, bandwidths from 1 B/s to 10^18.
bool isUsable(const Costs& costs);

// To quarters of an octave (a factor of 1.19), so that noise in a measurement rarely changes a choice.
Costs rounded(Costs costs);

// As options of `treadle plan`: "--latency 20 --bandwidth 6000 ...", in microseconds and MB (10^6 bytes) per second.
std::string describe(const Costs& costs);
// The costs that such a text says; what it leaves out has its default. InvalidArgument naming what is no such option
// or no usable number.
Result<Costs> parseCosts(std::string_view text);

void writeCosts(wire::Writer& writer, const Costs& costs);
// Makes the reader bad for costs that are not usable.
Costs readCosts(wire::Reader& reader);

}  // namespace treadle::cluster

#pragma once
// What a worker's part in a summation service has spent its time with, and as text for `treadle plan --explain`. Plain
// values and pure functions.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "treadle/core/base/clock.h"
#include "treadle/core/base/status.h"

namespace treadle::summation {

struct SummationTimes {
  std::string service = {};  // SummationOptions::name
  uint64_t number = 0;       // the same on all machines of the service, and on no other one of the job
  std::string worker = {};   // whose times these are: one of those below
  std::vector<std::string> workers = {}, servers = {};
  bool isAsynchronous = false;

  uint64_t sums = 0;   // of tensors, that have ended here
  uint64_t bytes = 0;  // of these tensors, as they travel
  uint64_t bytesSent = 0, bytesReceived = 0;

  // While sums of this worker were under way, or data of parts could come to this server or its sums go, of the thread
  // that moves the bytes:
  // For other workers to begin them, or, as some sums need it, to have all of them.
  Duration waiting{};
  Duration moving{};     // for sockets, while the data of some part could move
  Duration computing{};  // packing, adding, unpacking, reading and writing

  Duration underWay() const { return waiting + moving + computing; }
  bool operator==(const SummationTimes&) const = default;
};

// A line for each value. Control characters in names become spaces.
std::string textOf(const SummationTimes& times);
// InvalidArgument: no such text.
Result<SummationTimes> parseTimes(std::string_view text);

}  // namespace treadle::summation

namespace treadle {

using summation::SummationTimes;

}  // namespace treadle

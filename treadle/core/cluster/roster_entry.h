#pragma once
// A worker and where it listens, as it stands in rosters and announcements. Plain values and pure functions.

#include <string>
#include <vector>

#include "treadle/core/link/message.h"
#include "treadle/core/wire/reader.h"
#include "treadle/core/wire/writer.h"

namespace treadle::cluster {

// An address is the text that io::Address::parse takes, at most 16 of them of 256 bytes each.
struct RosterEntry {
  WorkerInfo worker;
  std::vector<std::string> addresses;  // in the order in which to try them
};

// Where the worker runs, as its addresses show it: workers of one host have the same text, and all workers of a job see
// the same one. Empty for addresses that lead nowhere but to this host.
std::string hostOf(const RosterEntry& entry);

void writeAddresses(wire::Writer& writer, const std::vector<std::string>& addresses);
std::vector<std::string> readAddresses(wire::Reader& reader);

// A failure that one worker tells another: its code, whose it is, and at most 8,192 bytes of its message. Never OK.
void writeFailure(wire::Writer& writer, const Status& why);
Status readFailure(wire::Reader& reader);

}  // namespace treadle::cluster

#pragma once
// A file that all workers of a job can read, in which rank 0 writes where it listens: for jobs without a port of their
// own. What stands in it is believed only as far as an address: whoever answers there has to know the job's secret.
// Free functions; any thread, at most one writer.

#include <string>

#include "treadle/core/io/address.h"

namespace treadle::cluster {

// In one step, so that nobody reads half of it. FailedPrecondition naming the path and why.
Status writeMeetingFile(const std::string& path, const io::Address& address);

// NotFound when there is none, or none that says an address.
Result<io::Address> readMeetingFile(const std::string& path);

// Unless another worker has written its own address meanwhile.
void removeMeetingFile(const std::string& path, const io::Address& address);

}  // namespace treadle::cluster

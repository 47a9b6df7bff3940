#include "treadle/cli/doctor.h"

#include <sys/stat.h>

#include <array>

#include "treadle/cli/blob.h"
#include "treadle/cli/examination.h"
#include "treadle/cli/gathering.h"
#include "treadle/cli/probe.h"

namespace treadle::cli {
namespace {

Told tell(CallContext& call) {
  Channels channels = valueOrThrow(JoinOptions().channelsToUse());
  Told told{{}, factsOfMachine(call.worker().metrics().memoryLimitBytes)};
  const std::array may = {channels.unixSockets, channels.tcp, channels.lanes, channels.sharedMemory,
                          channels.crossMemory};
  for (size_t i = 0; i < may.size(); ++i)
    if (may[i]) told.channels.emplace_back(kChannelNames[i]);
  return told;
}

int64_t sumOf(const Blob& blob) {
  if (!hasPattern(blob.buffer.bytes(), 0)) raise(dataLoss("other bytes arrived than were sent"));
  return static_cast<int64_t>(blob.buffer.sizeBytes);
}

std::string inUse(const ChannelUse& channel, const char* name) { return channel.inUse ? name : ""; }

// In this very job, by whatever way the two workers use.
std::string routeTo(CallContext& call, int rank) {
  Worker& worker = call.worker();
  worker.callNamed<int64_t>(rank, "treadle.doctor.sumOf", Blob{patternBuffer(0)});
  PeerChannels use = worker.channelsTo(rank);
  std::string messages = inUse(use.unixSockets, "unix") + inUse(use.tcp, "tcp");
  std::string large = inUse(use.sharedMemory, "shm");
  if (large.empty()) large = inUse(use.crossMemory, "cma");
  if (large.empty()) large = inUse(use.lanes, "lanes");
  return "messages over " + messages + ", large tensors over " + (large.empty() ? messages : large);
}

// The inode of this process's network namespace, which tells it from others; 0 when it is not known.
uint64_t networkNamespace() {
  struct stat info{};
  return ::stat("/proc/self/ns/net", &info) == 0 ? info.st_ino : 0;
}

// Processes on one host that do not see each other are in different network namespaces, as a rule.
std::string whereThisIs() {
  return " (this process is in network namespace " + std::to_string(networkNamespace()) +
         ": workers on one host need the same)";
}

}  // namespace

Functions doctorFunctions() {
  Functions functions;
  functions.add<&tell>(kTellFunction).add<&probe>("treadle.doctor.probe").add<&routeTo>("treadle.doctor.routeTo");
  functions.add<&sumOf>("treadle.doctor.sumOf");
  return functions;
}

Findings examine(const Launch& launch, const DoctorOptions& options) {
  TimePoint deadline = deadlineAfter(options.timeout);
  Findings findings;
  findings.workers = launch.workers();
  try {
    Gathering gathering("doctor", launch, doctorFunctions(), options.timeout);
    if (launch.rank == 0)
      Examination(gathering.worker(), deadline, findings).run();
    else
      gathering.waitForEnd(2 * options.timeout);
    gathering.end();
  } catch (const Error& error) {
    findings.trouble = "the workers cannot talk to each other: " + std::string(error.what()) + whereThisIs();
  }
  return findings;
}

}  // namespace treadle::cli

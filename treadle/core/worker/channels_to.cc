// Why a worker uses some of the ways to a peer and not the others: what the rooms below found, and what this worker was
// told.

#include "treadle/core/memory/block_pool.h"
#include "treadle/core/worker/core.h"

namespace treadle {
namespace {

std::string toldNotTo(const char* name, bool byOptions) {
  std::string where = byOptions ? "JoinOptions::channels" : "TREADLE_CHANNELS";
  return "this worker was told not to: " + where + " is without " + name;
}

std::string whyNoUnixSocket(const std::string& failure) {
  if (!failure.empty()) return failure;
  return "the peer listens on no UNIX socket: its TREADLE_CHANNELS, or JoinOptions, are without";
}

std::string whyNoTcp(const std::string& failure, bool overUnix) {
  if (overUnix) return "not needed: the UNIX socket is in use";
  if (!failure.empty()) return failure;
  return "the peer listens on no TCP address: its TREADLE_CHANNELS, or JoinOptions, are without";
}

void forbid(ChannelUse& channel, bool allowed, const char* name, bool byOptions) {
  if (!allowed && !channel.inUse) channel.why = toldNotTo(name, byOptions);
}

}  // namespace

Result<PeerChannels> Worker::Core::channelsTo(int rank) const {
  Result<PeerChannels> known = membership->channels(rank);
  if (!known.ok()) return known;
  PeerChannels& use = *known;
  const AddressBook::Failures failures = addressBook_.failures(rank);
  if (!use.unixSockets.inUse) use.unixSockets.why = whyNoUnixSocket(failures.unixSockets);
  if (!use.tcp.inUse) use.tcp.why = whyNoTcp(failures.tcp, use.unixSockets.inUse);
  Status pool = memory::BlockPool::statusOfProcess();
  if (!pool.ok()) use.sharedMemory.why = pool.message();
  const bool byOptions = options.channels.has_value();
  forbid(use.unixSockets, channels.unixSockets, "unix", byOptions);
  forbid(use.tcp, channels.tcp, "tcp", byOptions);
  forbid(use.lanes, channels.lanes, "lanes", byOptions);
  forbid(use.sharedMemory, channels.sharedMemory, "shm", byOptions);
  forbid(use.crossMemory, channels.crossMemory, "cma", byOptions);
  return known;
}

size_t Worker::Core::memoryLimitBytes() {
  const memory::BlockPool* pool = memory::BlockPool::ofProcess();
  return pool != nullptr ? pool->limitBytes() : 0;
}

}  // namespace treadle

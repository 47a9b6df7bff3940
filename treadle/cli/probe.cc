#include "treadle/cli/probe.h"

#include <algorithm>
#include <cstring>
#include <future>

#include "treadle/cli/blob.h"
#include "treadle/core/worker/worker.h"

namespace treadle::cli {
namespace {

constexpr int kRounds = 5;
constexpr size_t kSeeds = 4, kThere = 1, kBack = 2;

void settle() {}

// Another buffer than the one that came, so that the way back is taken too and not just undone.
Blob answerWith(const Blob& blob) {
  if (!hasPattern(blob.buffer.bytes(), kThere)) raise(dataLoss("other bytes arrived than were sent"));
  return {patternBuffer(kBack)};
}

// A channel and what it needs: lanes a socket of either kind, the other two a UNIX socket.
Channels alone(const std::string& name) {
  return {.unixSockets = name != "tcp",
          .tcp = name == "tcp" || name == "lanes",
          .lanes = name == "lanes",
          .sharedMemory = name == "shm",
          .crossMemory = name == "cma"};
}

ChannelUse useOf(const PeerChannels& use, const std::string& name) {
  if (name == "unix") return use.unixSockets;
  if (name == "tcp") return use.tcp;
  if (name == "lanes") return use.lanes;
  return name == "shm" ? use.sharedMemory : use.crossMemory;
}

std::shared_ptr<Worker> joinTwo(const ProbeTask& task, Duration limit) {
  JoinOptions options;
  options.name = "doctor" + std::to_string(task.rank);
  options.functions.add<&settle>("settle").add<&answerWith>("answerWith");
  options.launch = Launch{task.side, 2, "127.0.0.1", task.port, task.key};
  options.rpcTimeout = options.joinTimeout = limit;
  options.heartbeatTimeout = std::clamp<Duration>(limit, std::chrono::milliseconds(100), std::chrono::seconds(5));
  options.channels = alone(task.channel);
  return Worker::join(std::move(options));
}

double sendThereAndBack(Worker& worker, int other) {
  Blob blob{patternBuffer(kThere)};
  double best = 0;
  for (int round = 0; round < kRounds; ++round) {
    TimePoint begin = Clock::now();
    Blob back = worker.call<&answerWith>(other, blob);
    double took = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    if (!hasPattern(back.buffer.bytes(), kBack)) raise(dataLoss("other bytes came back than were sent"));
    best = round == 0 ? took : std::min(best, took);
  }
  return best;
}

ProbeResult run(const ProbeTask& task) try {
  auto limit = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(task.seconds));
  std::shared_ptr<Worker> worker = joinTwo(task, limit);
  const int other = 1 - task.side;
  ProbeResult result;
  worker->call<&settle>(other);  // its answer stands behind the answer to the offer of memory
  worker->barrier();
  if (task.side == 0) result.microseconds = sendThereAndBack(*worker, other);
  worker->barrier();
  ChannelUse use = useOf(worker->channelsTo(other), task.channel);
  const bool hasSent = task.side == 0 || task.channel != "cma";  // which answers do not take
  result.works = use.inUse && (!hasSent || use.sentBytes >= kRounds * kProbeBytes);
  result.why = use.inUse && !result.works ? "some of the bytes went another way" : use.why;
  worker->shutdown({.timeout = limit});
  return result;
} catch (const std::exception& error) {
  return {false, error.what(), 0};
}

}  // namespace

// On a thread of its own, as a worker may not be shut down on a handler's.
ProbeResult probe(CallContext&, const ProbeTask& task) {
  std::future<ProbeResult> result = std::async(std::launch::async, [&task] { return run(task); });
  return blocking([&] { return result.get(); });
}

const Buffer& patternBuffer(size_t seed) {
  static const auto* const buffers = new std::vector<Buffer>([] {  // NOLINT: handlers may run until the very end
    std::vector<Buffer> made;
    for (size_t seed = 0; seed < kSeeds; ++seed) {
      made.push_back(allocateBuffer(kProbeBytes));
      for (size_t i = 0; i < kProbeBytes; ++i) made.back().data[i] = static_cast<std::byte>((i * 7) ^ (i >> 8) ^ seed);
    }
    return made;
  }());
  return (*buffers)[seed];
}

bool hasPattern(Bytes bytes, size_t seed) {
  return bytes.size() == kProbeBytes && std::memcmp(bytes.data(), patternBuffer(seed).data, kProbeBytes) == 0;
}

}  // namespace treadle::cli

// What the workers of a job tell each other to act as one (cluster/cluster_messages.h).

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/cluster/cluster_messages.h"
#include "treadle/core/cluster/launch.h"

namespace treadle::fuzz::cluster_messages_fuzz {
namespace {

using cluster::ClusterKind;

std::vector<std::byte> encoded(const cluster::ClusterMessage& message) {
  switch (message.kind) {
    case ClusterKind::kEnter: return cluster::encodeEnter(message.round, message.value);
    case ClusterKind::kGathered: return cluster::encodeGathered(message.round, message.values);
    case ClusterKind::kIdle:
    case ClusterKind::kProbeAnswer: return cluster::encodeCount(message.kind, message.round, message.count);
    case ClusterKind::kProbe: return cluster::encodeRound(message.kind, message.round);
    case ClusterKind::kSuspect: return cluster::encodeSuspect(message.rank, message.why);
    case ClusterKind::kOut: return cluster::encodeOut(message.rank, message.why);
    case ClusterKind::kNotAll: return cluster::encodeNotAll(message.round, message.why);
    case ClusterKind::kAdmit: return cluster::encodeAdmit(message.worker);
    case ClusterKind::kAdmitted:
    case ClusterKind::kHere:
    case ClusterKind::kTakeOver:
    case ClusterKind::kKeeper:
    case ClusterKind::kConnected: return cluster::encodeRank(message.kind, message.rank);
    case ClusterKind::kLeft: return cluster::encodeLeft(message.text);
    case ClusterKind::kFinish:
    case ClusterKind::kTaken:
    case ClusterKind::kWhatIsLeft:
    case ClusterKind::kFollow: return cluster::encodePlain(message.kind);
  }
  return {};
}

void feed(Bytes input) {
  Result<cluster::ClusterMessage> message = cluster::parseClusterMessage(input);
  if (!message.ok()) return;
  promise(message->value.size() <= cluster::kMostGatheredBytes, "a value is a small one");
  promise(message->values.size() <= static_cast<size_t>(cluster::kMaxWorldSize), "there is one of each worker");
  promise(encoded(*message) == std::vector<std::byte>(input.begin(), input.end()), "a message is written as it came");
}

Inputs seeds() {
  Status why = peerLost("ps", "nothing was heard of it for 6 s");
  std::vector<std::byte> value = {std::byte{1}, std::byte{42}};
  Inputs seeds = {cluster::encodeEnter(7, {}),
                  cluster::encodeEnter(8, value),
                  cluster::encodeGathered(8, {{0, value}, {3, {}}}),
                  cluster::encodeGathered(7, {}),
                  cluster::encodeCount(ClusterKind::kIdle, 0, {10, 9, true, 1}),
                  cluster::encodeCount(ClusterKind::kProbeAnswer, 2, {10, 9, false, 0}),
                  cluster::encodeRound(ClusterKind::kProbe, 2),
                  cluster::encodeSuspect(3, why),
                  cluster::encodeOut(3, why),
                  cluster::encodeNotAll(9, why),
                  cluster::encodeAdmit({{"late", 5}, {"unix:x", "tcp://127.0.0.1:4000"}}),
                  cluster::encodeLeft("these workers are not in their shutdown, or not done: ps")};
  for (ClusterKind kind : {ClusterKind::kAdmitted, ClusterKind::kHere, ClusterKind::kTakeOver, ClusterKind::kKeeper,
                           ClusterKind::kConnected})
    seeds.push_back(cluster::encodeRank(kind, 5));
  for (ClusterKind kind : {ClusterKind::kFinish, ClusterKind::kTaken, ClusterKind::kWhatIsLeft, ClusterKind::kFollow})
    seeds.push_back(cluster::encodePlain(kind));
  return seeds;
}

const Fuzzer kClusterMessages("cluster_messages", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::cluster_messages_fuzz

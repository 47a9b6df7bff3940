// The coordinator's messages (cluster/coordinator.h), as any worker may send them to any. This worker itself is in no
// barrier and no shutdown, so nobody may be let out of one.

#include "tests/fuzz/fuzzer.h"
#include "tests/fuzz/silent_member.h"
#include "treadle/core/cluster/coordinator.h"

namespace treadle::fuzz::coordinator_fuzz {
namespace {

constexpr int kWorld = 3;
using cluster::ClusterKind;

// Of each kind, or any bytes.
std::vector<std::byte> messageFrom(Choices& choices) {
  const auto kind = static_cast<ClusterKind>(choices.below(21));
  const uint64_t round = choices.below(4);
  const int rank = static_cast<int>(choices.below(5));
  const Status why = choices.below(8) == 0 ? Status() : peerLost("w2", "the fuzzer says so");  // a failure is never OK
  switch (kind) {
    case ClusterKind::kEnter: return cluster::encodeEnter(round, choices.bytes(3));
    case ClusterKind::kGathered: return cluster::encodeGathered(round, {{rank, {}}});
    case ClusterKind::kIdle:
    case ClusterKind::kProbeAnswer: {
      cluster::WorkCount count{choices.below(4), choices.below(4), choices.below(2) == 1, choices.below(2)};
      return cluster::encodeCount(kind, round, count);
    }
    case ClusterKind::kProbe: return cluster::encodeRound(kind, round);
    case ClusterKind::kSuspect: return cluster::encodeSuspect(rank, why);
    case ClusterKind::kOut: return cluster::encodeOut(rank, why);
    case ClusterKind::kNotAll: return cluster::encodeNotAll(round, why);
    case ClusterKind::kAdmit: return cluster::encodeAdmit({{"late", rank}, {"unix:x"}});
    case ClusterKind::kLeft: return cluster::encodeLeft("w2");
    case ClusterKind::kAdmitted:
    case ClusterKind::kConnected:
    case ClusterKind::kHere:
    case ClusterKind::kTakeOver:
    case ClusterKind::kKeeper: return cluster::encodeRank(kind, rank);
    case ClusterKind::kFinish:
    case ClusterKind::kTaken:
    case ClusterKind::kWhatIsLeft:
    case ClusterKind::kFollow: return cluster::encodePlain(kind);
  }
  Bytes raw = choices.bytes(choices.below(40));
  return {raw.begin(), raw.end()};
}

// Whether a member that keeps to the protocol could have sent it to one of that rank, in a job of a fixed size.
bool admissible(const std::vector<std::byte>& message, int self, int from) {
  auto parsed = cluster::parseClusterMessage(message);
  if (!parsed.ok()) return false;
  switch (parsed->kind) {
    case ClusterKind::kEnter:
    case ClusterKind::kIdle:
    case ClusterKind::kProbeAnswer:
    case ClusterKind::kSuspect:
    case ClusterKind::kAdmitted:
    case ClusterKind::kConnected:
    case ClusterKind::kFollow:
    case ClusterKind::kWhatIsLeft: return self == 0;
    case ClusterKind::kOut: return true;
    case ClusterKind::kTaken:
    case ClusterKind::kAdmit:
    case ClusterKind::kHere:
    case ClusterKind::kTakeOver:
    case ClusterKind::kKeeper: return false;
    default: return from == 0;
  }
}

void feed(Bytes input) {
  Choices choices(input);
  const int self = static_cast<int>(choices.below(2));
  SilentMember member(self, kWorld);
  cluster::WorkCount work{choices.below(4), choices.below(4), choices.below(2) == 1};
  cluster::Coordinator coordinator(member.membership(), member.reactor(), [work] { return work; });
  bool finished = false;
  while (choices.any()) {
    const int from = self == 0 ? 1 + static_cast<int>(choices.below(2)) : (choices.below(2) == 0 ? 0 : 2);
    std::vector<std::byte> message = messageFrom(choices);
    if (self == 1 && from == 0 && admissible(message, self, from))
      finished = finished || message == cluster::encodePlain(ClusterKind::kFinish);
    SilentMember::From sender(member);
    coordinator.onMessage(from, sender.connection(), {link::Subject::kCluster, message, {}});
    promise(sender.closed() == !admissible(message, self, from), "who sends what makes no sense is cut off");
  }
  for (const auto& sent : member.sentTo(2)) {
    auto said = cluster::parseClusterMessage(sent);
    promise(said.ok(), "what is sent can be read");
    promise(said->kind != ClusterKind::kGathered && said->kind != ClusterKind::kFinish,
            "nobody is let go before this worker says so");
  }
  Status over = coordinator.shutdown(Clock::now());
  promise(over.ok() == finished, "the job is over when rank 0 says so");
  coordinator.close(cancelled("the end"));
}

Inputs seeds() {
  Inputs all;
  for (uint8_t kind = 1; kind <= 20; ++kind)
    for (uint8_t self : {0, 1}) {
      std::vector<std::byte> row = {std::byte{self}, {}, {}, std::byte{1}};
      for (uint8_t next : {0, int{kind}, 1, 2, 1, 2, 1, 0, 1}) row.push_back(std::byte{next});
      all.push_back(row);
    }
  return all;
}

const Fuzzer kCoordinator("coordinator", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::coordinator_fuzz

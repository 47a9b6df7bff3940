#pragma once
// What the workers of a job tell each other to act as one, as messages of subject kCluster: barriers and small values,
// the end of the job, who is lost, who comes. Pure functions; who sends what and when: coordinator.h and
// docs/protocol/liveness_and_shutdown.md.

#include <string>
#include <vector>

#include "treadle/core/cluster/roster_entry.h"
#include "treadle/core/cluster/shutdown_vote.h"

namespace treadle::cluster {

// The numbers travel on the wire: never renumber. "Keeper": the worker that counts and decides, rank 0 as a rule.
enum class ClusterKind : uint8_t {
  kEnter = 1,        // to the keeper: its barrier, or its value for all, number `round`
  kGathered = 2,     // keeper: all have come to number `round` of yours; their values
  kIdle = 3,         // to the keeper: in its shutdown, nothing under way
  kProbe = 4,        // keeper: what do you say in this `round`?
  kProbeAnswer = 5,  // to the keeper
  kFinish = 6,       // keeper: the job is over
  kSuspect = 7,      // to the keeper: `rank` is lost to me
  kOut = 8,          // keeper: `rank` is lost to all. Anybody: you are lost to me, and so to all
  kNotAll = 9,       // keeper: to number `round` of yours not all can come any more
  kAdmit = 10,       // keeper: this worker comes
  kAdmitted = 11,    // to the keeper: I know that `rank` comes
  kHere = 12,        // keeper: `rank` has joined
  kTakeOver = 13,    // keeper: be the keeper; the next rank to give out is `rank`
  kTaken = 14,       // to the keeper: I am
  kKeeper = 15,      // keeper: from now on it is `rank`
  kWhatIsLeft = 16,  // to the keeper: whom does the job wait for?
  kLeft = 17,        // keeper: those
  kFollow = 18,      // to the keeper: I know that you are it
  kConnected = 19,   // to the keeper: I am connected to `rank`, which comes
};

// One worker's part of what all were given by all.
struct GatheredValue {
  int rank = -1;
  std::vector<std::byte> bytes;
};

// One of these kinds, with the fields that it has.
struct ClusterMessage {
  ClusterKind kind = ClusterKind::kEnter;
  uint64_t round = 0;
  int rank = -1;
  WorkCount count;
  RosterEntry worker;
  Status why;
  std::string text;
  std::vector<std::byte> value;  // kEnter: of a barrier empty, else beginning with a byte that says so
  std::vector<GatheredValue> values;
};

// What one worker may give all others at a time.
inline constexpr size_t kMostGatheredBytes = size_t{64} << 10;

std::vector<std::byte> encodeRound(ClusterKind kind, uint64_t round);  // kProbe
std::vector<std::byte> encodePlain(ClusterKind kind);                  // kFinish, kTaken, kWhatIsLeft, kFollow
std::vector<std::byte> encodeRank(ClusterKind kind, int rank);  // kAdmitted, kHere, kTakeOver, kKeeper, kConnected
std::vector<std::byte> encodeCount(ClusterKind kind, uint64_t round, const WorkCount& count);  // kIdle, kProbeAnswer
std::vector<std::byte> encodeEnter(uint64_t round, Bytes value);
std::vector<std::byte> encodeGathered(uint64_t round, const std::vector<GatheredValue>& values);
std::vector<std::byte> encodeNotAll(uint64_t round, const Status& why);
std::vector<std::byte> encodeSuspect(int rank, const Status& why);
std::vector<std::byte> encodeOut(int rank, const Status& why);
std::vector<std::byte> encodeAdmit(const RosterEntry& worker);
std::vector<std::byte> encodeLeft(const std::string& text);

// DataLoss for anything else.
Result<ClusterMessage> parseClusterMessage(Bytes payload);

}  // namespace treadle::cluster

#pragma once
// What travels at the rendezvous, as frames of subject kCluster. Pure functions; see rendezvous.h.

#include "treadle/core/cluster/rendezvous.h"
#include "treadle/core/link/frame_reader.h"

namespace treadle::cluster {

enum class Step : uint8_t {
  kRegister = 1,
  kRoster = 2,
  kReady = 3,
  kGo = 4,
  kFail = 5,
  kRank = 6,
  kPresent = 7,
  kGone = 8,
  kProbe = 9,
  kEcho = 10
};

struct Registration {
  World world = 0;
  std::vector<std::string> addresses;
  Duration timeLeft = kNoTimeout;  // until the worker gives up by itself
};

std::vector<std::byte> encodeRegistration(const Registration& registration);
std::vector<std::byte> encodeRoster(const Roster& roster, const Costs& costs = {});
std::vector<std::byte> encodeRank(Step step, int rank);        // kRank, kGone: of an open job
std::vector<std::byte> encodePresent(const Present& present);  // likewise
std::vector<std::byte> encodeStep(Step step);                  // kReady, kGo
std::vector<std::byte> encodeFailure(const Status& why);       // of the server to all, of a worker to the server
std::vector<std::byte> encodeProbe(uint32_t number, size_t sizeBytes);  // the size is that of what follows the number
std::vector<std::byte> encodeEcho(uint32_t number);

struct RendezvousMessage {
  Step step = Step::kFail;
  Registration registration;
  Roster roster;
  Costs costs;  // kRoster
  Present present;
  int rank = -1;
  uint32_t number = 0;  // kProbe, kEcho
  Status failure;
};
// DataLoss for anything else.
Result<RendezvousMessage> parseRendezvous(Bytes payload);

// 16 MiB of payload (a roster of 65,536 workers), no buffers' bytes.
wire::FrameLimits rendezvousLimits();

}  // namespace treadle::cluster

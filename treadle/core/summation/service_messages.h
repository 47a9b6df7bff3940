#pragma once
// What the machines of a summation service send each other on the connections of their job: invitations and the
// declaration, while the service is made, lost servers and failures. Pure functions; docs/protocol/summation.md has the
// bytes.

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/clock.h"
#include "treadle/core/base/status.h"
#include "treadle/core/summation/declaration.h"

namespace treadle::summation {

inline constexpr size_t kMostNameBytes = 1024;                     // of a tensor
inline constexpr size_t kMostServiceNameBytes = 64;                // of which the name of its group is made
inline constexpr size_t kMostDeclarationBytes = size_t{32} << 20;  // some million parts

// The service with that number failed on the machine that sends it.
struct FailureMessage {
  uint64_t number = 0;
  Status why;
};

// To the first worker of the service with that number: the sender has lost one of its servers.
struct LossMessage {
  uint64_t number = 0;
  Machine server = 0;
  Status why;
};

// From the first worker: the parts of a lost server, in their order, are summed by these machines from now on.
struct MoveMessage {
  uint64_t number = 0;
  Machine lost = 0;
  std::vector<Machine> machines = {};

  bool operator==(const MoveMessage&) const = default;
};

// The first worker is about to make a service with these options (SummationOptions), and the receiver is one of its
// servers.
struct Invitation {
  std::vector<std::string> workers, servers;
  std::string name;
  Duration timeout{};

  bool operator==(const Invitation&) const = default;
};

// With the subject kSummation.
using ServiceMessage = std::variant<FailureMessage, Invitation, LossMessage, MoveMessage>;

std::vector<std::byte> encode(const Declaration& declaration);
std::vector<std::byte> encode(const FailureMessage& failure);
std::vector<std::byte> encode(const Invitation& invitation);
std::vector<std::byte> encode(const LossMessage& loss);
std::vector<std::byte> encode(const MoveMessage& move);

// DataLoss: no declaration, or none for so many workers and machines: Declaration::check.
Result<Declaration> parseDeclaration(Bytes bytes, size_t workers, size_t machines);
// DataLoss: no such message.
Result<ServiceMessage> parseServiceMessage(Bytes bytes);

}  // namespace treadle::summation

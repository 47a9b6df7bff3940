#pragma once
// What one worker tells another: a payload of small values and the buffers that travel beside it. The subject says
// which room reads it. Plain values.

#include <cstdint>
#include <string>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/link/arrival.h"

namespace treadle {

// A member of the job as others see it: its name (1 to 127 characters, unique in the job) and its rank, which counts
// from 0.
struct WorkerInfo {
  std::string name;
  int rank = -1;

  bool operator==(const WorkerInfo&) const = default;
};

}  // namespace treadle

namespace treadle::link {

// Whom a message is for. The numbers travel on the wire: never renumber.
enum class Subject : uint8_t { kCluster = 1, kRpc = 2, kGroup = 3 };
inline constexpr size_t kSubjects = 4;  // array size for "by subject"

// A message keeps its order with the others of its sender on the same connection. Sizes: wire::FrameLimits.
struct Message {
  Subject subject = Subject::kRpc;
  std::vector<std::byte> payload;
  std::vector<Buffer> buffers;  // when received: owned
  // When received with buffers whose bytes are still on their way (kRpc only): says when they are whole, and they must
  // not be looked at before. Null: they are.
  std::shared_ptr<Arrival> arrival = {};
};

// "worker 'ps' (rank 1)", for messages to people.
std::string describe(const WorkerInfo& worker);

}  // namespace treadle::link

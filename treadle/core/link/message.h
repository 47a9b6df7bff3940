#pragma once
// A message from one worker to another: a payload of small values and the buffers that travel beside it. The subject
// selects the room that reads it. Plain values.

#include <cstdint>
#include <string>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/link/arrival.h"

namespace treadle {

// A member of the job: its name (1 to 127 characters, unique in the job) and its rank, which counts from 0.
struct WorkerInfo {
  std::string name;
  int rank = -1;

  bool operator==(const WorkerInfo&) const = default;
};

}  // namespace treadle

namespace treadle::link {

// The room that reads a message. The values travel on the wire: never renumber.
enum class Subject : uint8_t { kCluster = 1, kRpc = 2, kGroup = 3, kSummation = 4 };
inline constexpr size_t kSubjects = 5;  // array size for "by subject"

// Messages of one sender on one connection stay in order. Size limits: wire::FrameLimits.
struct Message {
  Subject subject = Subject::kRpc;
  std::vector<std::byte> payload;
  std::vector<Buffer> buffers;  // when received: owned
  // Set on a received message whose buffers are still arriving (kRpc only): signals when they are complete. Do not read
  // them before. Null: they are complete.
  std::shared_ptr<Arrival> arrival = {};
};

// "worker 'ps' (rank 1)", for messages to people.
std::string describe(const WorkerInfo& worker);

}  // namespace treadle::link

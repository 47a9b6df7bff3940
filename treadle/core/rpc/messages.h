#pragma once
// The messages of subject kRpc as bytes (docs/protocol/calls.md): a request, a fetch of a reference's value, an
// answer, a cancellation, a notice about references. What values follow the header is the codecs' business. Pure
// functions.

#include <optional>
#include <string>
#include <vector>

#include "treadle/core/rpc/references.h"

namespace treadle::rpc {

inline constexpr size_t kMaxNameBytes = 1024;  // of a function

// How the refusal of a call with another signature begins: the caller, who alone has its own signature as text, adds
// it.
inline constexpr const char* kOtherSignature = "it has another signature there, ";

enum class MessageType : uint8_t { kRequest = 1, kFetch = 2, kAnswer = 3, kCancel = 4, kNotice = 5 };

// The `function` of a kFetch: whether the answer carries the value, or only says that it is there.
inline constexpr const char* kFetchValue = "toHere";
inline constexpr const char* kAwaitValue = "waitUntilReady";

// An argument that is not among the values: the value of a reference, which the callee looks up or fetches.
struct InputEntry {
  uint16_t index = 0;  // of the argument
  RefId ref;
  int32_t owner = -1;
};

inline constexpr size_t kMostInputs = 256;

struct MessageHeader {
  MessageType type = MessageType::kRequest;
  uint64_t id = 0;  // of the request: unique per caller; all but kNotice
  // kRequest and kFetch
  uint64_t timeLeftUs = 0;      // microseconds; UINT64_MAX: as long as the peers live
  int8_t priority = 0;          // of its large buffers, and of the answer's
  std::optional<RefId> target;  // the object of a member call; the reference to fetch
  // kRequest
  std::string function;
  uint64_t signature = 0;           // signatureHash
  std::optional<ForkEntry> result;  // keep the result under this reference
  std::vector<InputEntry> inputs;   // by index, at most kMostInputs
  // kAnswer
  Status status;  // of the call
  // kNotice
  RefNotice notice = RefNotice::kForkAdded;
  ForkEntry fork;
  // kRequest, kFetch, kAnswer
  std::vector<ForkEntry> forks;  // references among the values
  std::vector<std::byte> field;  // the interceptor's
};

// Most headers fit into as many bytes: reserved ahead, a message is one allocation.
inline constexpr size_t kUsualHeaderBytes = 128;

void encodeHeader(wire::Writer& writer, const MessageHeader& header);
// Puts in what of a request (or fetch) is known last. `payload` begins with its header.
void stampRequest(wire::Writer& payload, uint64_t id, uint64_t timeLeftUs);

// Reads a header off the front; what is left in the reader are the values. DataLoss for anything that is none, ranks
// outside of the world included.
Result<MessageHeader> parseHeader(wire::Reader& reader, int worldSize);

}  // namespace treadle::rpc

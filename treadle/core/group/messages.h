#pragma once
// What the members of a group say to each other (docs/protocol/group.md), as values. Pure functions.
//
//   message := group:u64 stream:u8 sequence:u64 kind:u8 body
//   start   := operation:u8 dataType:u8 reduceOp:u8 root:u32 count:u64 blocks:u64 smallBytes:u64 chunkBytes:u64
//              urgency:u32 algorithm:u8 [shape:string] elements:u64   [buffer]
//   chunk   := position:u64   [buffer]
//   ack     := positions:u64
//   abort   := code:u8 worker:string message:string
//   ask     :=
//   answer  := begun:u8
//   result  := rows:u64   [buffer]
//   share   := rows:u64   [buffer]
//   offers, orders: fusion_messages.h

#include "treadle/core/base/status.h"
#include "treadle/core/group/algorithm.h"
#include "treadle/core/group/data_type.h"
#include "treadle/core/link/message.h"

namespace treadle::wire {
class Reader;
class Writer;
}  // namespace treadle::wire

namespace treadle::group {

// The numbers travel on the wire: never renumber.
enum class OperationKind : uint8_t {
  kAllReduce = 1,
  kBroadcast = 2,
  kBarrier = 3,
  kReduce = 4,
  kReduceScatter = 5,
  kAllGather = 6,
  kGather = 7,
  kScatter = 8,
  kAllToAll = 9,
  kSend = 10,  // between two members
  kSparseAllReduce = 11,
  kAllToAllV = 12,  // all-to-all with blocks of any sizes
};
constexpr bool isOperation(uint8_t value) {
  return value >= 1 && value <= static_cast<uint8_t>(OperationKind::kAllToAllV);
}
enum class MessageKind : uint8_t {
  kStart = 1,  // "I have begun this operation": what exactly, and small data
  kChunk = 2,  // a part of the data of a large operation
  kAck = 3,    // how many of the receiver's chunks the sender has taken
  kAbort = 4,  // this operation has failed, or the whole group has
  kAsk = 5,    // "have you begun this operation?"
  kAnswer = 6,
  kResult = 7,  // of a sparse all-reduce: how many rows the sender has combined, and small data
  kOffers = 8,  // to rank 0: the names of tensors (Stream::kFused, as the next one)
  kOrders = 9,  // from rank 0: which tensors are summed next
  kShare = 10,  // after the starts: how many rows, and small data, of a sparse all-reduce along the tree, or how many
                // elements of an all-to-all whose sizes differ, the sender has for the receiver
};

// A group's operations are numbered by stream: those of all members, those of each direction between two of them, and
// the sums of tensors that are matched by name.
enum class Stream : uint8_t {
  kAll = 0,
  kSends = 1,     // data goes from the message's sender to its receiver
  kReceives = 2,  // the other way
  kFused = 3,
};

// An abort with this number is for the group: all its operations, the later ones too.
inline constexpr uint64_t kWholeGroup = UINT64_MAX;

inline constexpr size_t kMostShapeBytes = 2048;  // 64 sizes of 20 digits and more

// What all members of an operation must agree on.
struct Description {
  OperationKind operation = OperationKind::kBarrier;
  DataType dataType = DataType::kUint8;
  ReduceOp reduceOp = ReduceOp::kSum;
  uint32_t root = 0;
  // Elements of the whole data. Each member of a reduction gives so many; of a sparse one, so many if its data were
  // dense. Operations on blocks count all blocks together. 0 of an all-to-all with blocks of any sizes: its members
  // agree on no number.
  uint64_t count = 0;
  uint64_t blocks = 0;  // a hash of the elements of each member's block; 0 where there are no blocks
  uint64_t smallBytes = 0, chunkBytes = 0;
  Algorithm algorithm = Algorithm::kAutomatic;  // set when it is called
  // What the data is to the callers, as messages have it: "float32 [2, 3]", or "[4, 3] with 1 sparse dimension" of a
  // sparse all-reduce. Empty: no more than elements or bytes.
  std::string shape = {};
  uint32_t urgency = 0;  // large operations go before those of less

  // The type in which the data travels: float32 where partial results of 16-bit floats do, as by some algorithms.
  DataType movedBy(Algorithm algorithm) const;
  DataType movedType() const { return movedBy(algorithm); }
  uint64_t sizeBytes() const { return count * sizeOf(dataType); }
  // Small data may travel with the starts; see options.h.
  bool small() const { return !sizesVary() && sizeBytes() <= smallBytes; }
  // What members send to each other is of any size, which no third member knows.
  bool sizesVary() const {
    return operation == OperationKind::kAllToAllV || operation == OperationKind::kSparseAllReduce;
  }
  bool operator==(const Description&) const = default;
};

// "allReduce (sum) of 170 float32", "recv of 12 bytes": as the member with rank `caller` calls it.
std::string describe(const Description& description, int caller = 0);
// "smallBytes 65536, chunkBytes 262144, urgency 0 and algorithm ring".
std::string describeOptions(const Description& description);

struct Message {
  uint64_t group = 0;
  Stream stream = Stream::kAll;
  uint64_t sequence = 0;  // the how-manieth operation of the stream, from 0
  MessageKind kind = MessageKind::kStart;
  Description description;           // kStart
  uint64_t elements = 0;             // kStart: what the sender is going to send to the receiver, or what
                                     // all_to_all_v_operation.h and sparse_tree_operation.h say; kResult: rows;
                                     // kShare: rows, or elements of an all-to-all
  uint64_t position = 0;             // kChunk: which; kAck: how many are taken
  bool begun = false;                // kAnswer
  Status status;                     // kAbort
  Buffer data;                       // kStart, kChunk, kResult, kShare; empty or one buffer of the frame
  std::vector<std::byte> body = {};  // kOffers, kOrders: unread
};

// Whether a message of this kind is about tensors that are matched by name.
inline bool isOfNames(MessageKind kind) { return kind == MessageKind::kOffers || kind == MessageKind::kOrders; }

// The hash of blocks of so many elements.
uint64_t hashOf(std::span<const uint64_t> counts);

Message answerMessage(uint64_t sequence, bool begun);

// code:u8 worker:string message:string, of which at most `mostBytes` travel. Anything else makes the reader bad.
void writeFailure(wire::Writer& writer, const Status& failure, size_t mostBytes);
Status readFailure(wire::Reader& reader, size_t mostBytes);

// The payload; `data` travels beside it.
std::vector<std::byte> encode(const Message& message);

// DataLoss for what no member sends.
Result<Message> parse(link::Message message);

}  // namespace treadle::group

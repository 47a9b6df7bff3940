#pragma once
// The messages between members about tensors that are matched by name (docs/protocol/group.md), as values. Pure
// functions.
//
// A member sends Offers to the group's rank 0, and the next ones when Orders have answered them. The offers of a member
// are numbered from 0, in their order; both sides count. Rank 0 sends Orders to each member: the parts of its tensors
// that all members sum next, in one operation, and the offers that have failed.
//
//   offers  := entries:u32 entry*
//   entry   := 1:u8 offer | 2:u8 failed
//   offer   := name:string dataType:u8 reduceOp:u8 dimensions:u32 size:u64*
//   orders  := answered:u8 parts:u32 part* failures:u32 failed*
//   part    := number:u64 begin:u64 end:u64
//   failed  := number:u64 code:u8 worker:string message:string

#include <string>
#include <variant>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/status.h"
#include "treadle/core/group/data_type.h"
#include "treadle/core/group/plan.h"

namespace treadle::group {

inline constexpr size_t kTensorNameBytes = 255;
inline constexpr size_t kMostDimensions = 64;
inline constexpr size_t kMostOpenOffers = 16'384;  // of a member, that have neither failed nor been ordered as a whole
inline constexpr size_t kMostEntries = 256;        // of a message
inline constexpr size_t kMostParts = 1024;
inline constexpr size_t kMostFailures = 64;
inline constexpr size_t kFailureBytes = 2048;  // of a message about one failure

// What all members must agree on about a tensor of one name.
struct Signature {
  DataType dataType = DataType::kUint8;
  ReduceOp reduceOp = ReduceOp::kSum;
  std::vector<uint64_t> shape = {};  // sizes of the dimensions; none: one element

  uint64_t elements() const;
  bool operator==(const Signature&) const = default;
};

// "float32 [2, 3] (sum)".
std::string describe(const Signature& signature);
// "pushPull of 'name' in " and the group's text.
std::string textOf(std::string_view name, const std::string& group);

// InvalidArgument: too many dimensions, more bytes than a memory has, no such reduction.
Status check(const Signature& signature);
// InvalidArgument: empty, too long, with control characters (it is written to logs).
Status checkTensorName(std::string_view name);

struct Offer {
  std::string name;
  Signature signature;
};

// Why the offer with this number ends without a result.
struct Failed {
  uint64_t number = 0;
  Status why;
};

// New offers, and earlier ones that the member gives up, in the order in which it did so. At least one.
struct Offers {
  std::vector<std::variant<Offer, Failed>> entries;
};

// Elements of the tensor that the receiver has offered under this number.
struct Part {
  uint64_t number = 0;
  Range elements;
};

// At least one of the three.
struct Orders {
  bool answered = false;    // the receiver may send its next offers
  std::vector<Part> parts;  // of one operation; none: no operation
  std::vector<Failed> failures;
};

std::vector<std::byte> encode(const Offers& offers);
std::vector<std::byte> encode(const Orders& orders);

// DataLoss for what no member sends.
Result<Offers> parseOffers(Bytes body);
Result<Orders> parseOrders(Bytes body);

}  // namespace treadle::group

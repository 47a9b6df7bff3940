#pragma once
// What the machines of a summation service send each other on the connections of their job: the declaration, while the
// service is made, and failures. Pure functions; docs/protocol/summation.md has the bytes.

#include <cstdint>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/status.h"
#include "treadle/core/summation/declaration.h"

namespace treadle::summation {

inline constexpr size_t kMostNameBytes = 1024;                      // of a tensor
inline constexpr size_t kMostDeclarationBytes = size_t{256} << 20;  // of which each machine takes a copy

// The service with that number failed on the machine that sends it.
struct FailureMessage {
  uint64_t number = 0;
  Status why;
};

std::vector<std::byte> encode(const Declaration& declaration);
std::vector<std::byte> encode(const FailureMessage& failure);

// DataLoss: no declaration, or none for so many workers and machines: Declaration::check.
Result<Declaration> parseDeclaration(Bytes bytes, size_t workers, size_t machines);
// DataLoss: no such message.
Result<FailureMessage> parseFailure(Bytes bytes);

}  // namespace treadle::summation

#pragma once
// What all machines of a summation service know alike: the tensors that are summed, how, and which machine sums which
// part of them. Plain values.

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "treadle/core/base/buffer.h"
#include "treadle/core/base/status.h"
#include "treadle/core/group/data_type.h"
#include "treadle/core/summation/frame.h"
#include "treadle/core/summation/packing.h"
#include "treadle/core/summation/part_placement.h"

namespace treadle::summation {

// A piece is small, so that a machine adds and answers while the rest of a part is on its way.
inline constexpr uint64_t kPieceBytes = uint64_t{32} << 10;

// How the data of several workers meets.
struct SumMode {
  static constexpr uint64_t kAnyStaleness = UINT64_MAX;

  // Whether each worker has an answer for itself: the sum of all that has come (AsynchronousAdder).
  bool isAsynchronous = false;
  uint64_t staleness = kAnyStaleness;  // then: how many rounds a worker may be ahead of another one

  bool operator==(const SumMode&) const = default;
};

struct Declaration {
  struct Tensor {
    group::DataType type = group::DataType::kFloat32;
    uint64_t bytes = 0;     // that travel
    std::string name = {};  // for messages
    Packing packing = {};   // of float32 in a synchronous service

    // Of a worker's data.
    uint64_t dataBytes() const { return packing.isPacked() ? packing.elements * sizeof(float) : bytes; }
    // What no cut may divide.
    uint64_t unitBytes() const { return packing.isPacked() ? kChunkBytes : sizeOf(type); }
    // As which its bytes are summed: see Packing::hasKeptSums.
    group::DataType summedAs() const { return packing.summedAs().value_or(type); }

    bool operator==(const Tensor&) const = default;
  };

  static constexpr uint64_t kMostBytes = uint64_t{1} << 40;  // of all tensors' data

  std::vector<Tensor> tensors;  // the most urgent ones first
  std::vector<Part> parts;      // as placeInOrder() yields them: in the order of tensors and bytes
  size_t workers = 0;           // the machines with the lowest numbers
  SumMode mode = {};

  // Placed by shares, which have a worker for each that there is. InvalidArgument: as `check`.
  static Result<Declaration> of(std::vector<Tensor> tensors, const Shares& shares);

  // InvalidArgument: a type without a sum, a tensor that has a part of an element, or is packed as none can be, more
  // than kMostBytes; parts that are not of these machines, larger than kMostPartBytes, cut through an element or a
  // chunk, more than placing makes, or that do not cover each byte once, in order.
  Status check(size_t machines) const;

  // InvalidArgument: no tensor of that number has such data, by its size and alignment.
  Status checkData(size_t tensor, Bytes data) const;

  // For messages: its name, or its number where it has none.
  std::string textOf(size_t tensor) const;

  // The place among the parts of the one that has this byte of the tensor.
  std::optional<size_t> partAt(uint32_t tensor, uint64_t offset) const;
  // Of the frame, if the machine sums it; of a frame about the part as a whole.
  std::optional<size_t> partOf(const Frame& frame, Machine machine) const;
  std::optional<size_t> partBegunBy(const Frame& frame, Machine machine) const;
  // The range of parts of a tensor.
  std::pair<size_t, size_t> partsOf(size_t tensor) const;

  uint64_t piecesOf(size_t part) const { return (parts[part].bytes() + kPieceBytes - 1) / kPieceBytes; }
  // Bytes of the tensor in the part's piece of that number.
  uint64_t beginOf(size_t part, uint64_t piece) const { return parts[part].begin + piece * kPieceBytes; }
  uint64_t bytesOf(size_t part, uint64_t piece) const {
    return std::min(kPieceBytes, parts[part].end - beginOf(part, piece));
  }
  // Whether the frame has the part's piece of that number, which may be one too many.
  bool isPiece(const Frame& frame, size_t part, uint64_t piece) const {
    return piece < piecesOf(part) && frame.offset == beginOf(part, piece) && frame.sizeBytes == bytesOf(part, piece);
  }
  // That piece of the part's data.
  MutableBytes pieceOf(size_t part, uint64_t piece, MutableBytes data) const {
    return data.subspan(piece * kPieceBytes, bytesOf(part, piece));
  }
};

}  // namespace treadle::summation

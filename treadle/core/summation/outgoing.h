#pragma once
// A frame that is to be written, with the memory of its piece. Pure functions and plain values.

#include "treadle/core/summation/declaration.h"
#include "treadle/core/summation/frame.h"
#include "treadle/core/summation/version.h"

namespace treadle::summation {

struct Outgoing {
  Frame frame;
  Bytes piece;      // empty where the frame has none
  size_t part = 0;  // of the declaration
};

// About a part as a whole, without a piece.
inline Outgoing outgoingOfPart(FrameKind kind, const Declaration& declaration, size_t part, uint64_t round) {
  const Part& where = declaration.parts[part];
  return {{kind, 0, static_cast<uint32_t>(where.tensor), round, where.begin}, {}, part};
}

// Which data a running sum contains.
inline Outgoing outgoingVersion(const Declaration& declaration, size_t part, uint64_t round, Version& version) {
  Outgoing one = outgoingOfPart(FrameKind::kVersion, declaration, part, round);
  one.piece = bytesOf(version);
  one.frame.sizeBytes = static_cast<uint32_t>(one.piece.size());
  return one;
}

// With the piece of that number of the part's `data`: an addend or a sum.
inline Outgoing outgoingPiece(FrameKind kind, const Declaration& declaration, size_t part, uint64_t round,
                              uint64_t piece, MutableBytes data) {
  const Bytes bytes = declaration.pieceOf(part, piece, data);
  const auto tensor = static_cast<uint32_t>(declaration.parts[part].tensor);
  return {{kind, static_cast<uint32_t>(bytes.size()), tensor, round, declaration.beginOf(part, piece)}, bytes, part};
}

}  // namespace treadle::summation

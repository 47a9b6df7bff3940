#pragma once
// The queue of the tensors that all members have offered. It puts small ones of one dtype and reduction together into
// one batch, and cuts large ones. The tensors take turns: one that is cut goes to the end of the queue after each
// piece, so that others do not wait for all of it. Pure logic; one thread at a time.

#include <list>
#include <vector>

#include "treadle/core/group/fusion_messages.h"

namespace treadle::group {

inline constexpr uint64_t kPieceBytes = uint64_t{4} << 20;   // a larger tensor is cut into pieces of this size
inline constexpr uint64_t kBatchBytes = uint64_t{64} << 20;  // of several tensors together

class BatchCutter {
 public:
  struct Piece {
    uint64_t tensor = 0;
    Range elements;
    bool last = false;  // of its tensor
  };
  // Either one piece, or several whole tensors.
  using Batch = std::vector<Piece>;

  void add(uint64_t tensor, const Signature& signature);
  // Removes the rest of the tensor, if there is any. Looks at the whole queue.
  void remove(uint64_t tensor);
  // The pieces of the next operation; none when nothing is left.
  Batch next();

  bool empty() const { return queue_.empty(); }

 private:
  struct Tensor {
    uint64_t id;
    DataType dataType;
    ReduceOp reduceOp;
    uint64_t elements, cut = 0;

    uint64_t sizeBytes() const { return elements * sizeOf(dataType); }
    bool small() const { return sizeBytes() <= kPieceBytes; }
  };

  Batch nextPiece(Tensor tensor);
  static Piece wholeOf(const Tensor& tensor) { return {tensor.id, {0, tensor.elements}, true}; }

  std::list<Tensor> queue_;
};

}  // namespace treadle::group

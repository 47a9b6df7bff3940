#include "treadle/core/group/batch_cutter.h"

#include <algorithm>

namespace treadle::group {

void BatchCutter::add(uint64_t tensor, const Signature& signature) {
  queue_.push_back({tensor, signature.dataType, signature.reduceOp, signature.elements()});
}

void BatchCutter::remove(uint64_t tensor) {
  std::erase_if(queue_, [tensor](const Tensor& one) { return one.id == tensor; });
}

BatchCutter::Batch BatchCutter::next() {
  if (queue_.empty()) return {};
  const Tensor first = queue_.front();
  queue_.pop_front();
  if (!first.small()) return nextPiece(first);
  Batch batch = {wholeOf(first)};
  uint64_t left = kBatchBytes - first.sizeBytes();
  for (auto it = queue_.begin(); it != queue_.end() && batch.size() < kMostParts;) {
    const bool fits =
        it->dataType == first.dataType && it->reduceOp == first.reduceOp && it->small() && it->sizeBytes() <= left;
    if (fits) {
      left -= it->sizeBytes();
      batch.push_back(wholeOf(*it));
    }
    it = fits ? queue_.erase(it) : std::next(it);
  }
  return batch;
}

BatchCutter::Batch BatchCutter::nextPiece(Tensor tensor) {
  const uint64_t end = std::min(tensor.elements, tensor.cut + kPieceBytes / sizeOf(tensor.dataType));
  const Piece piece{tensor.id, {tensor.cut, end}, end == tensor.elements};
  tensor.cut = end;
  if (!piece.last) queue_.push_back(tensor);
  return {piece};
}

}  // namespace treadle::group

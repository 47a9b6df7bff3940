#include "treadle/core/summation/compression.h"

namespace treadle::summation {

Status Compression::validate() const {
  if (form != Form::kTopK)
    return fraction == 0 ? Status() : invalidArgument("only top-k compression has a fraction (Compression::topK)");
  if (fraction >= 1.0 / 2048 && fraction <= 1) return {};
  return invalidArgument("the fraction of top-k compression is " + std::to_string(fraction) +
                         "; it can be from 1/2048 to 1");
}

}  // namespace treadle::summation

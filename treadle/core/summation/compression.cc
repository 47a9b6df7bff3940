#include "treadle/core/summation/compression.h"

namespace treadle::summation {

Status Compression::validate() const {
  if (form != Form::kTopK)
    return fraction == 0 ? Status() : invalidArgument("only top-k compression has a fraction (Compression::topK)");
  if (fraction >= 1.0 / 2048 && fraction <= 1) return {};
  return invalidArgument("the fraction of top-k compression is " + std::to_string(fraction) +
                         "; it can be from 1/2048 to 1");
}

const char* nameOf(Compression::Form form) {
  switch (form) {
    case Compression::Form::kNone: break;
    case Compression::Form::kFloat16: return "float16";
    case Compression::Form::kBFloat16: return "bfloat16";
    case Compression::Form::kOneBit: return "one bit";
    case Compression::Form::kTopK: return "top-k";
  }
  return "none";
}

}  // namespace treadle::summation

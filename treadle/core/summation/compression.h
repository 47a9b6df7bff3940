#pragma once
// In which form the float32 data of a tensor travels to the machines that sum it, and its sum back. Plain values.

#include <cstdint>
#include <string>

#include "treadle/core/base/status.h"

namespace treadle::summation {

struct Compression {
  enum class Form : uint8_t {
    kNone = 0,      // as it is
    kFloat16 = 1,   // rounded to nearest, ties to even; values of 65,520 and more become infinite
    kBFloat16 = 2,  // rounded likewise; as large as float32, and less precise than kFloat16
    // A bit for each number, and for each 480 of them the means of those below zero and of the others (Seide et al.,
    // "1-bit stochastic gradient descent", Interspeech 2014): 1/30 of the bytes. A number that is not finite makes the
    // mean of its side so, too.
    kOneBit = 3,
    kTopK = 4,  // the largest numbers and their places; the others are taken for zero
  };

  Form form = Form::kNone;
  // Of kTopK: about how many bytes travel, of those that the data has; 1/2048 to 1. Of 16 / fraction numbers, which
  // follow each other, the 16 largest travel. 0 with other forms.
  double fraction = 0;

  static Compression float16() { return {Form::kFloat16}; }
  static Compression bfloat16() { return {Form::kBFloat16}; }
  static Compression oneBit() { return {Form::kOneBit}; }
  static Compression topK(double fraction) { return {Form::kTopK, fraction}; }

  // InvalidArgument: a fraction out of range, or with another form.
  Status validate() const;
  bool operator==(const Compression&) const = default;
};

const char* nameOf(Compression::Form form);  // "float16"

}  // namespace treadle::summation

namespace treadle {

using summation::Compression;

}  // namespace treadle

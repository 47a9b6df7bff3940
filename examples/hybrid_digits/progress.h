#pragma once
// How a training shows that it moves: on a terminal one bar that is redrawn in place, elsewhere a plain line
// per epoch. One object per training, used by its thread alone. Writes to a stream that outlives it.

#include <chrono>
#include <cstdint>
#include <optional>
#include <ostream>
#include <string>

#include "examples/hybrid_digits/metrics.h"

namespace hybrid {

class Progress {
 public:
  enum class Style { kBar, kLines };

  // A bar when standard output is a terminal, or a launcher says with TREADLE_TERMINAL=1 that it shows ours
  // on one.
  static Style styleOfStandardOutput();

  Progress(std::ostream& out, Style style, int64_t epochs, int64_t stepsPerEpoch);
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;
  ~Progress();  // ends the line of the bar, so that an error message starts on its own

  // `step` steps of epoch `epoch` are done. Cheap: the bar is redrawn ten times a second at most.
  void step(int64_t epoch, int64_t step, double loss);
  void epochDone(const EpochMetrics& metrics);

 private:
  void draw(int64_t epoch, int64_t step, double loss);

  std::ostream& out_;
  const Style style_;
  const int64_t epochs_, stepsPerEpoch_;
  std::optional<EpochMetrics> last_;  // of the last whole epoch
  std::chrono::steady_clock::time_point nextDraw_{};
  size_t drawn_ = 0;  // characters of the bar that stands on the line
};

}  // namespace hybrid

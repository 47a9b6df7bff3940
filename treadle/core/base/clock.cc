#include "treadle/core/base/clock.h"

#include <cstdio>

namespace treadle {

std::string toText(Duration duration) {
  double seconds = std::chrono::duration<double>(duration).count();
  char text[32];
  if (seconds >= 1.0) {
    std::snprintf(text, sizeof text, "%.3g s", seconds);
  } else {
    std::snprintf(text, sizeof text, "%.3g ms", seconds * 1e3);
  }
  return text;
}

}  // namespace treadle

#include "examples/hybrid_digits/metrics.h"

#include <nlohmann/json.hpp>

namespace hybrid {

std::string jsonOf(const EpochMetrics& metrics) {
  nlohmann::ordered_json line = {
      {"epoch", metrics.epoch},       {"trainer", metrics.trainer},       {"loss", metrics.loss},
      {"accuracy", metrics.accuracy}, {"steps_per_s", metrics.stepsPerS}, {"seconds", metrics.seconds}};
  return line.dump();
}

}  // namespace hybrid

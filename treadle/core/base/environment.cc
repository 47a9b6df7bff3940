#include "treadle/core/base/environment.h"

#include <cstdlib>

namespace treadle::base {

std::optional<std::string> environment(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return std::string(value);
}

}  // namespace treadle::base

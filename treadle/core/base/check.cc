#include "treadle/core/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace treadle::base {

void checkFailed(const char* file, int line, const char* condition, std::string_view message) {
  std::fprintf(stderr, "%s:%d: internal check failed: %s: %.*s\n", file, line, condition,
               static_cast<int>(message.size()), message.data());
  std::abort();
}

}  // namespace treadle::base

#include "treadle/core/io/fd.h"

#include <system_error>

namespace treadle::io {

Status errnoStatus(Code code, const std::string& what, int error) {
  return {code, what + ": " + std::generic_category().message(error)};
}

}  // namespace treadle::io

#include "treadle/core/wire/writer.h"

#include <limits>

#include "treadle/core/base/check.h"

namespace treadle::wire {

void Writer::string(std::string_view text) {
  TREADLE_CHECK(text.size() <= std::numeric_limits<uint32_t>::max(), "a string of over 4 GiB reached the wire");
  number(static_cast<uint32_t>(text.size()));
  raw(std::as_bytes(std::span(text)));
}

}  // namespace treadle::wire

#include "treadle/core/wire/reader.h"

namespace treadle::wire {

bool Reader::boolean() {
  auto value = number<uint8_t>();
  if (value > 1) fail();
  return value == 1;
}

std::string Reader::string(size_t limitBytes) {
  auto size = number<uint32_t>();
  if (size > limitBytes) {
    fail();
    return {};
  }
  Bytes bytes = raw(size);
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

size_t Reader::count(size_t elementBytes) {
  auto elements = number<uint32_t>();
  if (elements > rest_.size() / elementBytes) {
    fail();
    return 0;
  }
  return elements;
}

Status Reader::status(std::string_view what) const {
  return ok_ ? Status() : dataLoss(std::string(what) + " ends too early or holds a value out of range");
}

Status Reader::finished(std::string_view what) const {
  TREADLE_RETURN_IF_ERROR(status(what));
  if (rest_.empty()) return {};
  return dataLoss(std::string(what) + " has " + std::to_string(rest_.size()) + " bytes too many");
}

}  // namespace treadle::wire

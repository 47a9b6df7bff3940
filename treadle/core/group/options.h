#pragma once
// What the maker of a group may choose. Members must choose alike: what differs fails the first operation.

#include <string>

#include "treadle/core/base/clock.h"
#include "treadle/core/base/status.h"

namespace treadle::group {

struct GroupOptions {
  std::string name = {};                        // for messages to people, and to tell groups of the same members apart
  Duration timeout = std::chrono::seconds(60);  // for each operation; kWhilePeerLives: the members' lives bound it
  size_t smallBytes = size_t{64} << 10;         // up to this size all members send all they have to all others
  size_t chunkBytes = size_t{256} << 10;        // a part of large data, which travels by itself

  Status validate() const;
};

}  // namespace treadle::group

#pragma once
// Finds what is waited for longer than a time limit, by looks at what is waited for at the moment: a part that a sum
// cannot begin with costs nothing before. Pure logic; one thread at a time.

#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "treadle/core/base/clock.h"

namespace treadle::summation {

class Overdue {
 public:
  // A part and its round.
  using Awaited = std::pair<size_t, uint64_t>;

  explicit Overdue(Duration limit) : limit_(limit) {}

  // What is waited for now. Yields one of it that was at all looks since `limit` ago.
  std::optional<Awaited> look(const std::vector<Awaited>& awaited, TimePoint now) {
    std::map<Awaited, TimePoint> since;
    std::optional<Awaited> overdue;
    for (const Awaited& one : awaited) {
      const auto found = since_.find(one);
      since[one] = found == since_.end() ? now : found->second;
      if (!overdue && now - since[one] >= limit_) overdue = one;
    }
    since_ = std::move(since);
    return overdue;
  }

 private:
  const Duration limit_;
  std::map<Awaited, TimePoint> since_;
};

}  // namespace treadle::summation

#include "treadle/core/group/nearest_name.h"

#include <algorithm>
#include <numeric>
#include <vector>

namespace treadle::group {

size_t editDistance(std::string_view one, std::string_view other) {
  // Row i: the distances of the first i bytes of `one` from the beginnings of `other`.
  std::vector<size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 1; i <= one.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= other.size(); ++j) {
      const size_t replaced = diagonal + (one[i - 1] == other[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row.back();
}

// The distance is at least the difference of the sizes.
bool mayBeSimilar(std::string_view one, std::string_view other) {
  const auto [shorter, longer] = std::minmax({one.size(), other.size()});
  return 2 * (longer - shorter) <= longer;
}

std::optional<std::string> nearestName(std::string_view name, std::span<const std::string_view> candidates) {
  std::optional<std::string> nearest;
  size_t least = SIZE_MAX;
  for (const std::string_view candidate : candidates) {
    if (!mayBeSimilar(name, candidate)) continue;
    const size_t distance = editDistance(name, candidate);
    if (distance >= least || 2 * distance > std::max(name.size(), candidate.size())) continue;
    least = distance;
    nearest = candidate;
  }
  return nearest;
}

}  // namespace treadle::group

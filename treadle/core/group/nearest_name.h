#pragma once
// Finds the name that a program probably meant, for messages about a name that nobody else has. Pure functions.

#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace treadle::group {

// How many bytes must be inserted, removed or replaced to make one text the other (V. I. Levenshtein, 1966).
size_t editDistance(std::string_view one, std::string_view other);

// Whether they can be similar (nearestName), by their sizes alone.
bool mayBeSimilar(std::string_view one, std::string_view other);

// The first of those with the least distance; none when even that is more than half of the longer name.
std::optional<std::string> nearestName(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace treadle::group

#pragma once
// The names of the ways in which an operation moves its data (docs/protocol/group.md). Pure.

#include <cstdint>
#include <string_view>

namespace treadle::group {

// The numbers travel on the wire: never renumber.
enum class Algorithm : uint8_t {
  kAutomatic = 0,     // chosen by the operation, its size and the group's; never travels
  kExchange = 1,      // with the starts, from each member to each: one step
  kTree = 2,          // with the starts, along a binomial tree up and down
  kRoot = 3,          // one member combines all elements of all
  kRing = 4,          // in chunks around a ring
  kCirculant = 5,     // in log2 n rounds of blocks
  kDirect = 6,        // each block from its owner to the members that need it
  kHierarchical = 7,  // in rounds on each host, then between hosts, then on each host again
};

// In which order the values of the members are added. kRank: ((x0 + x1) + x2) + ..., so that an element's sum has the
// same bits in every operation, wherever it lies in the data and however the data is cut.
enum class SumOrder : uint8_t { kAny, kRank };

bool isAlgorithm(uint8_t value);  // one that travels
// Whether members pass on sums of several members, and not only their own values.
bool sendsPartialResults(Algorithm algorithm);
std::string_view nameOf(Algorithm algorithm);

}  // namespace treadle::group

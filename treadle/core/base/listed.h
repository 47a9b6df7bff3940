#pragma once
// Lists in messages. A function without state; any thread.

#include <algorithm>
#include <string>

namespace treadle {

// "a, b, c and 4 more": the first `most` of the items, each as `inWords` has it. Empty for no items.
template <class Items, class F>
std::string listed(const Items& items, size_t most, F inWords) {
  std::string list;
  for (size_t i = 0; i < std::min(items.size(), most); ++i) list += (i > 0 ? ", " : "") + inWords(items[i]);
  return items.size() > most ? list + " and " + std::to_string(items.size() - most) + " more" : list;
}

}  // namespace treadle

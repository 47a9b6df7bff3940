#pragma once
// The first half of reading a safetensors header: from JSON to entries that are well formed each by itself.
// Whether they fit together and fit the file is judged by `parseHeader` (header.h), the only caller. Without
// state; any thread.

#include <string_view>

#include "treadle/train/checkpoint/header.h"

namespace treadle::safetensors {

inline constexpr std::string_view kMetadataKey = "__metadata__";

// The entries in the order of the text. Names are unique, dtypes known, dimensions not negative.
Result<Header> parseEntries(std::string_view json);

}  // namespace treadle::safetensors

#pragma once
// The sizes of a transformer on the command line. A function without state.

#include <CLI/CLI.hpp>

#include "examples/common/causal_transformer.h"

namespace example {

// --layers, --width, --heads, --length. Sets the app's callback, which refuses a width that is no multiple of the
// heads.
void addOptions(CLI::App& app, TransformerOptions& options);

}  // namespace example

#include "examples/common/transformer_options.h"

#include <string>

namespace example {

void addOptions(CLI::App& app, TransformerOptions& options) {
  const auto atLeastOne = CLI::Range(int64_t{1}, int64_t{1} << 20);
  app.add_option("--layers", options.layers, "of the transformer")->capture_default_str()->check(atLeastOne);
  app.add_option("--width", options.width, "of the transformer")->capture_default_str()->check(atLeastOne);
  app.add_option("--heads", options.heads, "by which the width is divided")->capture_default_str()->check(atLeastOne);
  app.add_option("--length", options.length, "characters in a sample")->capture_default_str()->check(atLeastOne);
  app.callback([&options] {
    if (options.width % options.heads != 0)
      throw CLI::ValidationError(
          "--width", std::to_string(options.width) + " is not a multiple of --heads " + std::to_string(options.heads));
  });
}

}  // namespace example

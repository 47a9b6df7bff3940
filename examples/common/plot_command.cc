#include "examples/common/plot_command.h"

#include <cstdlib>
#include <iomanip>
#include <sstream>

namespace example {

std::string plotCommand(const RunFolder& folder, const std::string& title) {
  const char* python = std::getenv("TREADLE_PYTHON");
  std::ostringstream command;
  command << std::quoted(python != nullptr ? python : "python3") << ' ' << std::quoted(EXAMPLE_PLOT_SCRIPT) << ' '
          << std::quoted(folder.metricsPath()) << ' ' << std::quoted(folder.file("metrics.png")) << ' '
          << std::quoted(title);
  return command.str();
}

}  // namespace example

#include "treadle/core/link/channels.h"

#include <array>

namespace treadle {

Result<Channels> Channels::parse(std::string_view text) {
  Channels channels{false, false, false, false, false};
  const std::array<std::pair<std::string_view, bool*>, 5> names = {{{"unix", &channels.unixSockets},
                                                                    {"tcp", &channels.tcp},
                                                                    {"lanes", &channels.lanes},
                                                                    {"shm", &channels.sharedMemory},
                                                                    {"cma", &channels.crossMemory}}};
  for (bool more = true; more;) {
    size_t comma = text.find(',');
    std::string_view name = text.substr(0, comma);
    more = comma != std::string_view::npos;
    text = more ? text.substr(comma + 1) : std::string_view();
    bool known = false;
    for (const auto& [each, wanted] : names)
      if (each == name) known = *wanted = true;
    if (!known)
      return invalidArgument("'" + std::string(name) +
                             "' is no channel; give some of unix, tcp, lanes, shm and cma, with commas");
  }
  if (!channels.unixSockets && !channels.tcp)
    return invalidArgument("without 'unix' and 'tcp' no worker could be reached; allow one of them");
  return channels;
}

}  // namespace treadle

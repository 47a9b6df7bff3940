#include "treadle/core/cluster/launch_variables.h"

#include <charconv>

#include "treadle/core/base/environment.h"

namespace treadle::cluster {

std::string quoted(std::string_view value) {
  constexpr size_t kShown = 60;
  std::string text = "'";
  for (char c : value.substr(0, kShown)) text += c >= ' ' && c != 0x7f ? c : '?';
  return text + (value.size() > kShown ? "...'" : "'");
}

Status wrong(std::string_view name, std::string_view value, std::string_view expected) {
  return invalidArgument("the environment variable " + std::string(name) + " is " + quoted(value) + ", not " +
                         std::string(expected) + "; " + std::string(kHowToStart));
}

Result<std::string> required(const char* name, std::string_view given) {
  std::optional<std::string> value = base::environment(name);
  if (value) return std::move(*value);
  return failedPrecondition("the environment variable " + std::string(name) + " is missing while " +
                            std::string(given) + " is set; " + std::string(kHowToStart));
}

Result<int> numberIn(const char* name, std::string_view text, int lowest, int highest) {
  int number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number < lowest || number > highest)
    return wrong(name, text, "a whole number from " + std::to_string(lowest) + " to " + std::to_string(highest));
  return number;
}

bool isHost(std::string_view text) {
  constexpr std::string_view kOthers = ".-_:%";
  for (char c : text) {
    bool alphanumeric = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
    if (!alphanumeric && kOthers.find(c) == std::string_view::npos) return false;
  }
  return !text.empty() && text.size() <= 253;
}

Result<std::string> hostIn(const char* name) {
  std::string value = base::environment(name).value_or("");
  if (!isHost(value)) return wrong(name, value, "a host name or an IP address");
  return value;
}

Result<uint16_t> portIn(const char* name, std::string_view text) {
  Result<int> port = numberIn(name, text, 1, 65'535);
  if (!port.ok()) return std::move(port).status();
  return static_cast<uint16_t>(*port);
}

Status readPlace(const char* rankName, const char* worldName, Launch& launch) {
  Result<std::string> rankText = required(rankName, worldName), worldText = required(worldName, rankName);
  if (!rankText.ok()) return std::move(rankText).status();
  if (!worldText.ok()) return std::move(worldText).status();
  Result<int> world = numberIn(worldName, *worldText, 1, kMaxWorldSize);
  if (!world.ok()) return std::move(world).status();
  Result<int> rank = numberIn(rankName, *rankText, 0, kMaxWorldSize - 1);
  if (!rank.ok()) return std::move(rank).status();
  if (*rank >= *world)
    return invalidArgument("the environment variable " + std::string(rankName) + " is " + *rankText + " but " +
                           worldName + " is " + *worldText + ": ranks count from 0 to " + std::to_string(*world - 1) +
                           "; " + std::string(kHowToStart));
  launch.rank = *rank;
  launch.worldSize = *world;
  return {};
}

std::string firstHost(std::string_view list) {
  std::string host;
  while (!list.empty() && list.front() != ',') {
    if (list.front() != '[') {
      host += list.front();
      list.remove_prefix(1);
      continue;
    }
    size_t close = list.find(']');
    if (close == std::string_view::npos) return {};
    std::string_view numbers = list.substr(1, close - 1);
    host += numbers.substr(0, numbers.find_first_of(",-"));
    list.remove_prefix(close + 1);
  }
  return isHost(host) ? host : std::string();
}

}  // namespace treadle::cluster

#include "treadle/core/cluster/costs.h"

#include <array>
#include <charconv>
#include <cmath>
#include <sstream>

namespace treadle::cluster {
namespace {

// Microseconds of a second, megabytes of a byte.
constexpr double kMicro = 1e6, kMega = 1e-6;

// Calls `use` with each number that is measured, its option, and how many of the option's units are one of the
// number's.
template <class AnyCosts, class Use>
void forEachNumber(AnyCosts& costs, Use use) {
  use(costs.sameHost.latency, "--latency", kMicro);
  use(costs.sameHost.bandwidth, "--bandwidth", kMega);
  use(costs.betweenHosts.latency, "--network-latency", kMicro);
  use(costs.betweenHosts.bandwidth, "--network-bandwidth", kMega);
  use(costs.message, "--message-cost", kMicro);
}

constexpr std::string_view kCoresOption = "--cores";

// No link and no processor comes near these.
constexpr double kLeastSeconds = 1e-12, kMostSeconds = 1e3, kLeastBandwidth = 1, kMostBandwidth = 1e18;

// As parseCosts reads it in any locale.
std::string numberText(double number) {
  std::array<char, 32> text{};
  return {text.data(),
          std::to_chars(text.data(), text.data() + text.size(), number, std::chars_format::general, 4).ptr};
}

template <class Number>
bool readNumber(const std::string& text, Number& number) {
  const char* const end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, number);
  return error == std::errc() && stopped == end;
}

// False when there is no such option, or the text is no number.
bool setOption(Costs& costs, const std::string& option, const std::string& text) {
  if (option == kCoresOption) return readNumber(text, costs.cores);
  bool isSet = false;
  forEachNumber(costs, [&](double& number, const char* name, double units) {
    if (option != name) return;
    isSet = readNumber(text, number);
    number /= units;
  });
  return isSet;
}

}  // namespace

bool isUsable(const Costs& costs) {
  bool usable = costs.cores > 0;
  forEachNumber(costs, [&](double number, const char*, double units) {
    const bool isTime = units == kMicro;
    const double least = isTime ? kLeastSeconds : kLeastBandwidth, most = isTime ? kMostSeconds : kMostBandwidth;
    usable = usable && number >= least && number <= most;
  });
  return usable;
}

Costs rounded(Costs costs) {
  constexpr double kPerOctave = 4;
  forEachNumber(costs, [](double& number, const char*, double) {
    number = std::exp2(std::round(std::log2(number) * kPerOctave) / kPerOctave);
  });
  return costs;
}

std::string describe(const Costs& costs) {
  std::string text;
  forEachNumber(costs, [&](double number, const char* option, double units) {
    text += option + (" " + numberText(number * units)) + " ";
  });
  return text + std::string(kCoresOption) + " " + std::to_string(costs.cores);
}

Result<Costs> parseCosts(std::string_view text) {
  Costs costs;
  std::istringstream words{std::string(text)};
  for (std::string option, number; words >> option; number.clear()) {
    words >> number;
    if (!setOption(costs, option, number) || !isUsable(costs))
      return invalidArgument("'" + option + " " + number + "' is none of the costs, such as " + describe(Costs()));
  }
  return costs;
}

void writeCosts(wire::Writer& writer, const Costs& costs) {
  forEachNumber(costs, [&](double number, const char*, double) { writer.number(number); });
  writer.number(costs.cores);
}

Costs readCosts(wire::Reader& reader) {
  Costs costs;
  forEachNumber(costs, [&](double& number, const char*, double) { number = reader.number<double>(); });
  costs.cores = reader.number<uint32_t>();
  if (!isUsable(costs)) reader.fail();
  return reader.ok() ? costs : Costs();
}

}  // namespace treadle::cluster

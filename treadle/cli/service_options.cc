// The options of `treadle plan --workers`, from text to numbers.

#include <fstream>
#include <sstream>

#include "treadle/cli/known_models.h"
#include "treadle/cli/numbers.h"
#include "treadle/cli/service_plan.h"

namespace treadle::cli {
namespace {

constexpr size_t kMostMachines = 1024, kMostTensors = 1'000'000;
constexpr const char* kDefaultBandwidth = "1180";

Result<size_t> countIn(const std::string& option, const std::string& text, size_t lowest) {
  if (auto count = numberIn<size_t>(text, lowest, kMostMachines)) return *count;
  return invalidArgument(option + " is '" + text + "', not a number from " + std::to_string(lowest) + " to " +
                         std::to_string(kMostMachines));
}

// "25", "25MB", "200Mbit", "10Gbit": bytes per second.
std::optional<double> bandwidthIn(const std::string& text) {
  constexpr std::pair<const char*, double> kUnits[] = {
      {"Gbit", 1e9 / 8}, {"Mbit", 1e6 / 8}, {"GB", 1e9}, {"MB", 1e6}, {"", 1e6}};
  for (const auto& [unit, bytes] : kUnits) {
    if (!text.ends_with(unit)) continue;
    const auto number = numberIn<double>(text.substr(0, text.size() - std::string(unit).size()), 1e-3, 1e9);
    return number ? std::optional(*number * bytes) : std::nullopt;
  }
  return {};
}

// One bandwidth for each machine, or one for all.
Result<std::vector<double>> bandwidthsIn(const std::string& option, const std::string& text, size_t machines) {
  std::vector<double> all;
  std::istringstream items(text.ends_with(',') ? text + "," : text);  // getline leaves out an empty last item
  for (std::string item; std::getline(items, item, ',');) {
    const std::optional<double> one = bandwidthIn(item);
    if (!one) return invalidArgument(option + " has '" + item + "', not a bandwidth such as 25, 200Mbit or 10Gbit");
    all.push_back(*one);
  }
  if (all.size() == 1) all.resize(machines, all[0]);
  if (all.size() == machines) return all;
  return invalidArgument(option + " has " + std::to_string(all.size()) + " bandwidths for " + std::to_string(machines) +
                         " machines; give one for each, or one for all");
}

// A line for each tensor: its bytes, and whatever follows them, such as its name. Lines that begin with # count as
// none.
Result<std::vector<uint64_t>> readTensors(const std::string& path) {
  std::ifstream file(path);
  if (!file) return invalidArgument("--tensors is '" + path + "', which cannot be read");
  std::vector<uint64_t> tensors;
  size_t number = 0;
  uint64_t room = kMostBytesOfSum;
  for (std::string line; std::getline(file, line);) {
    ++number;
    const std::string first = line.substr(0, line.find_first_of(" \t\r"));
    if (line.empty() || line[0] == '#') continue;
    const auto bytes = numberIn<uint64_t>(first, 0, UINT64_MAX);
    if (!bytes)
      return invalidArgument("line " + std::to_string(number) + " of " + path +
                             " does not begin with a tensor's bytes");
    if (*bytes > room || tensors.size() == kMostTensors)
      return invalidArgument(path + " has more than a service sums, " + std::to_string(kMostBytesOfSum >> 40) +
                             " TiB, or more than " + std::to_string(kMostTensors) + " tensors");
    room -= *bytes;
    tensors.push_back(*bytes);
  }
  return tensors;
}

Result<std::vector<uint64_t>> readSizes(const ServiceChoice& choice) {
  const int given = !choice.bytes.empty() + !choice.model.empty() + !choice.tensors.empty();
  if (given > 1) return invalidArgument("--bytes, --model and --tensors exclude each other");
  if (!choice.model.empty()) return parametersOf(choice.model);
  if (!choice.tensors.empty()) return readTensors(choice.tensors);
  Result<uint64_t> bytes = bytesOfSum(choice.bytes);
  if (!bytes.ok()) return std::move(bytes).status();
  return std::vector<uint64_t>{*bytes};
}

}  // namespace

Result<uint64_t> bytesOfSum(const std::string& text) {
  if (auto bytes = numberIn<uint64_t>(text.empty() ? "64000000" : text, 1, kMostBytesOfSum)) return *bytes;
  return invalidArgument("--bytes is '" + text + "', not a whole number from 1 to " + std::to_string(kMostBytesOfSum));
}

Result<summation::Bandwidths> readBandwidths(const ServiceChoice& choice) {
  Result<size_t> workers = countIn("--workers", choice.workers.empty() ? "4" : choice.workers, 1);
  if (!workers.ok()) return std::move(workers).status();
  Result<size_t> servers = countIn("--servers", choice.servers.empty() ? "0" : choice.servers, 0);
  if (!servers.ok()) return std::move(servers).status();
  const std::string& given = choice.bandwidth.empty() ? kDefaultBandwidth : choice.bandwidth;
  Result<std::vector<double>> ofWorkers = bandwidthsIn("--bandwidth", given, *workers);
  if (!ofWorkers.ok()) return std::move(ofWorkers).status();
  summation::Bandwidths bandwidths{std::move(*ofWorkers), {}};
  if (choice.serverBandwidth.empty() && *servers > 0 && given.find(',') != std::string::npos)
    return invalidArgument("--bandwidth is of each worker: give --server-bandwidth too");
  Result<std::vector<double>> ofServers =
      bandwidthsIn("--server-bandwidth", choice.serverBandwidth.empty() ? given : choice.serverBandwidth, *servers);
  if (!ofServers.ok()) return std::move(ofServers).status();
  bandwidths.servers = std::move(*ofServers);
  return bandwidths;
}

Result<ServicePlan> readServicePlan(const ServiceChoice& choice) {
  Result<summation::Bandwidths> bandwidths = readBandwidths(choice);
  if (!bandwidths.ok()) return std::move(bandwidths).status();
  Result<std::vector<uint64_t>> tensors = readSizes(choice);
  if (!tensors.ok()) return std::move(tensors).status();
  if (std::accumulate(tensors->begin(), tensors->end(), uint64_t{0}) == 0)
    return invalidArgument("there is no byte to sum");
  return ServicePlan{std::move(*bandwidths), std::move(*tensors)};
}

}  // namespace treadle::cli

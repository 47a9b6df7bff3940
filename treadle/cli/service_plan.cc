#include "treadle/cli/service_plan.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "treadle/cli/numbers.h"

namespace treadle::cli {
namespace {

using summation::Bandwidths;
using summation::Part;
using summation::PerMachine;
using summation::Shares;

// A way to sum, with its time; none where it does not exist for these machines.
struct Scheme {
  const char* name;
  const char* what;
  std::optional<double> seconds;
};

double bytesOf(const ServicePlan& plan) {
  return static_cast<double>(std::accumulate(plan.tensorBytes.begin(), plan.tensorBytes.end(), uint64_t{0}));
}

double secondsOfParts(const ServicePlan& plan, const std::vector<Part>& parts) {
  const Bandwidths& given = plan.bandwidths;
  return seconds(sharesOf(parts, given.workers.size(), given.servers.size()), given, bytesOf(plan));
}

std::vector<Part> placed(const ServicePlan& plan) {
  return placeInOrder(plan.tensorBytes, bestShares(plan.bandwidths));
}

std::vector<Scheme> schemesOf(const ServicePlan& plan) {
  const Bandwidths& given = plan.bandwidths;
  const double bytes = bytesOf(plan);
  const auto hashed = summation::placeByHash(plan.tensorBytes, given.workers.size(), given.servers.size());
  std::optional<double> byHash, byServers;
  if (hashed) byHash = secondsOfParts(plan, *hashed);
  if (!given.servers.empty()) byServers = seconds(serverShares(given), given, bytes);
  return {{"least", "no division of the bytes takes less", leastSeconds(given, bytes)},
          {"service", "tensors placed by shares, as Treadle does", secondsOfParts(plan, placed(plan))},
          {"service by hash", "tensors placed by a hash, as BytePS does", byHash},
          {"ring", "a ring all-reduce among the workers", ringSeconds(given, bytes)},
          {"parameter servers", "all bytes on the servers", byServers}};
}

std::string megabytesPerSecond(double bandwidth) { return fixed(bandwidth / 1e6, 1) + " MB/s"; }

// A bar of at most 40 characters.
std::string bar(double part) {
  return std::string(static_cast<size_t>(std::lround(40 * std::clamp(part, 0.0, 1.0))), '#');
}

// "worker 2", "workers 0-3".
std::string machinesText(const char* one, size_t first, size_t last) {
  if (first == last) return one + (" " + std::to_string(first));
  return one + ("s " + std::to_string(first) + "-" + std::to_string(last));
}

// A row for each run of machines with the same bandwidth, as they have the same share.
std::string machineRows(const char* one, const std::vector<double>& bandwidths, const std::vector<double>& shares,
                        const std::vector<double>& moved, double bytes, double longest) {
  std::string rows;
  for (size_t first = 0; first < bandwidths.size();) {
    size_t last = first;
    while (last + 1 < bandwidths.size() && bandwidths[last + 1] == bandwidths[first]) ++last;
    const double busy = longest == 0 ? 0 : moved[first] / bandwidths[first] / longest;
    rows += "   " + padded(machinesText(one, first, last), 18) + padded(megabytesPerSecond(bandwidths[first]), 14) +
            padded(fixed(100 * shares[first], 2) + "%", 9) + padded(bytesText(std::round(shares[first] * bytes)), 12) +
            padded(bytesText(std::round(moved[first])), 12) + padded(fixed(100 * busy, 0) + "%", 6) + bar(busy) + "\n";
    first = last + 1;
  }
  return rows;
}

std::string machineTable(const ServicePlan& plan) {
  const Bandwidths& given = plan.bandwidths;
  const double bytes = bytesOf(plan), longest = leastSeconds(given, bytes);
  const Shares shares = bestShares(given);
  const PerMachine moved = traffic(shares, bytes);
  return "   machine           bandwidth     share    sums        each way    busy\n" +
         machineRows("worker", given.workers, shares.workers, moved.workers, bytes, longest) +
         machineRows("server", given.servers, shares.servers, moved.servers, bytes, longest);
}

std::string schemeTable(const ServicePlan& plan) {
  const std::vector<Scheme> schemes = schemesOf(plan);
  const double least = *schemes[0].seconds;
  double longest = 0;
  for (const Scheme& one : schemes) longest = std::max(longest, one.seconds.value_or(0));
  std::string text = "                     time        compared\n";
  for (const Scheme& one : schemes) {
    text += "   " + padded(one.name, 18);
    if (!one.seconds) {
      text += "-\n";
      continue;
    }
    text += padded(timeText(*one.seconds * 1e6), 12) + padded(least == 0 ? "-" : fixed(*one.seconds / least, 3), 10) +
            bar(longest == 0 ? 0 : *one.seconds / longest) + "\n";
  }
  return text;
}

std::string titleOf(const ServicePlan& plan) {
  return "sum of " + bytesText(bytesOf(plan)) + " in " + countText(plan.tensorBytes.size(), "tensor") + " among " +
         countText(plan.bandwidths.workers.size(), "worker") + " with " +
         countText(plan.bandwidths.servers.size(), "server");
}

nlohmann::ordered_json machineJson(const char* role, double bandwidth, double share, double moved) {
  return {{"role", role}, {"bytes_per_second", bandwidth}, {"share", share}, {"bytes_each_way", moved}};
}

}  // namespace

std::string serviceTable(const ServicePlan& plan) {
  std::string legend;
  for (const Scheme& one : schemesOf(plan)) legend += std::string(one.name) + ": " + one.what + "\n";
  return titleOf(plan) + "\n\n" + machineTable(plan) + "\n" + schemeTable(plan) +
         "\nshare, sums: what the machine sums of all bytes; each way: what it sends, and receives; busy: of the least "
         "time\n" +
         legend +
         (plan.bandwidths.workers.size() == 2
              ? "Two workers gain nothing by servers: each must send and receive all bytes once.\n"
              : "");
}

std::string serviceJson(const ServicePlan& plan) {
  const Bandwidths& given = plan.bandwidths;
  const std::vector<Part> parts = placed(plan);
  const Shares shares = sharesOf(parts, given.workers.size(), given.servers.size());
  const PerMachine moved = traffic(shares, bytesOf(plan));
  nlohmann::ordered_json json = {
      {"workers", given.workers.size()}, {"servers", given.servers.size()}, {"bytes", bytesOf(plan)}};
  for (size_t i = 0; i < given.workers.size(); ++i)
    json["machines"].push_back(machineJson("worker", given.workers[i], shares.workers[i], moved.workers[i]));
  for (size_t i = 0; i < given.servers.size(); ++i)
    json["machines"].push_back(machineJson("server", given.servers[i], shares.servers[i], moved.servers[i]));
  for (const Scheme& one : schemesOf(plan)) {
    if (one.seconds) json["seconds"][one.name] = *one.seconds;
  }
  for (const Part& part : parts)
    json["parts"].push_back(
        {{"tensor", part.tensor}, {"begin", part.begin}, {"end", part.end}, {"machine", part.machine}});
  return json.dump(2) + "\n";
}

}  // namespace treadle::cli

#include "treadle/core/summation/shares.h"

#include <algorithm>

#include "treadle/core/base/check.h"

namespace treadle::summation {
namespace {

double sumOf(const std::vector<double>& numbers) { return std::accumulate(numbers.begin(), numbers.end(), 0.0); }

double slowestWorker(const Bandwidths& bandwidths) {
  return *std::min_element(bandwidths.workers.begin(), bandwidths.workers.end());
}

double countOf(const std::vector<double>& machines) { return static_cast<double>(machines.size()); }

void checkBandwidths(const Bandwidths& bandwidths) {
  const auto isAboveZero = [](double one) { return one > 0; };
  TREADLE_CHECK(!bandwidths.workers.empty(), "a sum is of the data of at least one worker");
  TREADLE_CHECK(std::all_of(bandwidths.workers.begin(), bandwidths.workers.end(), isAboveZero) &&
                    std::all_of(bandwidths.servers.begin(), bandwidths.servers.end(), isAboveZero),
                "a bandwidth is above 0");
}

// Splits `whole` in proportion to the weights.
std::vector<double> split(double whole, std::vector<double> weights) {
  const double all = sumOf(weights);
  for (double& weight : weights) weight *= all > 0 ? whole / all : 0;
  return weights;
}

double slowest(const std::vector<double>& moved, const std::vector<double>& bandwidths) {
  double seconds = 0;
  for (size_t machine = 0; machine < moved.size(); ++machine)
    seconds = std::max(seconds, moved[machine] / bandwidths[machine]);
  return seconds;
}

}  // namespace

Shares bestShares(const Bandwidths& bandwidths) {
  const double n = countOf(bandwidths.workers), t = leastSeconds(bandwidths, 1);
  if (n == 1) return {{1}, std::vector<double>(bandwidths.servers.size(), 0)};
  const double onServers = std::min(1.0, t * sumOf(bandwidths.servers) / n);
  // What each worker could sum within t. Two workers exchange halves as fast as they exchange anything else.
  std::vector<double> room(bandwidths.workers.size(), 1);
  if (n > 2) {
    for (size_t i = 0; i < room.size(); ++i) room[i] = std::max(0.0, (t * bandwidths.workers[i] - 1) / (n - 2));
  }
  return {split(1 - onServers, std::move(room)), split(onServers, bandwidths.servers)};
}

Shares serverShares(const Bandwidths& bandwidths) {
  checkBandwidths(bandwidths);
  TREADLE_CHECK(!bandwidths.servers.empty(), "parameter servers without a server");
  return {std::vector<double>(bandwidths.workers.size(), 0), split(1, bandwidths.servers)};
}

Shares serviceShares(const Bandwidths& bandwidths, bool isAsynchronous) {
  return isAsynchronous && !bandwidths.servers.empty() ? serverShares(bandwidths) : bestShares(bandwidths);
}

Shares serviceSharesWithout(const Bandwidths& bandwidths, bool isAsynchronous, const std::vector<bool>& isLost) {
  const size_t workers = bandwidths.workers.size();
  Bandwidths left{bandwidths.workers, {}};
  for (size_t server = 0; server < bandwidths.servers.size(); ++server)
    if (!isLost[workers + server]) left.servers.push_back(bandwidths.servers[server]);
  Shares shares = serviceShares(left, isAsynchronous);
  for (size_t server = 0; server < bandwidths.servers.size(); ++server)
    if (isLost[workers + server])
      shares.servers.insert(shares.servers.begin() + static_cast<std::ptrdiff_t>(server), 0);
  return shares;
}

PerMachine traffic(const Shares& shares, double bytes) {
  const double n = countOf(shares.workers);
  PerMachine moved = shares;
  for (double& worker : moved.workers) worker = bytes * (1 + (n - 2) * worker);
  for (double& server : moved.servers) server *= bytes * n;
  return moved;
}

double seconds(const Shares& shares, const Bandwidths& bandwidths, double bytes) {
  checkBandwidths(bandwidths);
  const PerMachine moved = traffic(shares, bytes);
  return std::max(slowest(moved.workers, bandwidths.workers), slowest(moved.servers, bandwidths.servers));
}

double leastSeconds(const Bandwidths& bandwidths, double bytes) {
  checkBandwidths(bandwidths);
  const double n = countOf(bandwidths.workers);
  if (n == 1) return 0;
  const double together = n * sumOf(bandwidths.workers) + (n - 2) * sumOf(bandwidths.servers);
  return std::max(bytes / slowestWorker(bandwidths), 2 * n * (n - 1) * bytes / together);
}

double ringSeconds(const Bandwidths& bandwidths, double bytes) {
  checkBandwidths(bandwidths);
  const double n = countOf(bandwidths.workers);
  return 2 * (n - 1) / n * bytes / slowestWorker(bandwidths);
}

}  // namespace treadle::summation

#include "treadle/core/summation/part_placement.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <string>

#include "treadle/core/base/check.h"

namespace treadle::summation {
namespace {

// The tensors in parts of at most `most` bytes, on no machine yet.
std::vector<Part> cutTensors(const std::vector<uint64_t>& tensorBytes, uint64_t most) {
  std::vector<Part> parts;
  for (size_t tensor = 0; tensor < tensorBytes.size(); ++tensor) {
    for (uint64_t begin = 0; begin < tensorBytes[tensor]; begin += most)
      parts.push_back({tensor, begin, std::min(tensorBytes[tensor], begin + most)});
  }
  return parts;
}

// What each machine lacks of its share of the bytes that were added.
class Room {
 public:
  explicit Room(const Shares& shares) : shares_(shares.workers), left_(shares.workers.size() + shares.servers.size()) {
    shares_.insert(shares_.end(), shares.servers.begin(), shares.servers.end());
  }

  void add(uint64_t bytes) {
    for (Machine machine = 0; machine < left_.size(); ++machine)
      left_[machine] += shares_[machine] * static_cast<double>(bytes);
  }
  Machine most() const { return static_cast<Machine>(std::max_element(left_.begin(), left_.end()) - left_.begin()); }
  void close(Machine machine) { left_[machine] = -std::numeric_limits<double>::infinity(); }
  void take(const Part& part) { left_[part.machine] -= static_cast<double>(part.bytes()); }

  // How many of the bytes the machine takes without going far beyond its share. What it lacks in several parts is
  // divided evenly: the last one is not too small to be cut.
  uint64_t fitting(Machine machine, uint64_t bytes) const {
    const double left = std::max(left_[machine], static_cast<double>(kLeastPartBytes));
    const double part = left / std::ceil(left / static_cast<double>(kMostPartBytes));
    const uint64_t cut = (static_cast<uint64_t>(part) + kCutAlignment - 1) / kCutAlignment * kCutAlignment;
    return bytes < cut + kLeastPartBytes ? bytes : cut;
  }

 private:
  std::vector<double> shares_, left_;  // left_: bytes
};

// D. J. Bernstein's string hash, of the number's decimal digits.
uint64_t djb2(uint64_t number) {
  uint64_t hash = 5381;
  for (char digit : std::to_string(number)) hash = hash * 33 + static_cast<unsigned char>(digit);
  return hash;
}

}  // namespace

std::vector<Part> placeInOrder(const std::vector<uint64_t>& tensorBytes, const Shares& shares) {
  Room room(shares);
  std::vector<Part> placed;
  for (size_t tensor = 0; tensor < tensorBytes.size(); ++tensor) {
    room.add(tensorBytes[tensor]);
    for (uint64_t begin = 0; begin < tensorBytes[tensor]; begin = placed.back().end) {
      Part part{.tensor = tensor, .begin = begin, .machine = room.most()};
      const uint64_t most = std::min(kMostPartBytes, tensorBytes[tensor] - begin);
      part.end = begin + room.fitting(part.machine, most);
      room.take(part);
      placed.push_back(part);
    }
  }
  return placed;
}

std::vector<Machine> placeAnew(const std::vector<Part>& parts, Machine lost, const Shares& shares,
                               const std::vector<bool>& isLost) {
  uint64_t all = 0;
  for (const Part& part : parts) all += part.bytes();
  Room room(shares);
  room.add(all);
  std::vector<Part> homeless;
  for (const Part& part : parts) part.machine == lost ? homeless.push_back(part) : room.take(part);
  for (Machine machine = 0; machine < isLost.size(); ++machine)
    if (isLost[machine]) room.close(machine);
  std::vector<size_t> order(homeless.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) { return homeless[i].bytes(); });
  std::vector<Machine> machines(homeless.size());
  for (const size_t i : order) {
    homeless[i].machine = machines[i] = room.most();
    room.take(homeless[i]);
  }
  return machines;
}

std::optional<std::vector<Part>> placeByHash(const std::vector<uint64_t>& tensorBytes, size_t workers, size_t servers) {
  constexpr uint64_t kPartBytes = 4'096'000, kBound = 101;
  if (servers > workers || workers + servers > kBound) return {};
  const Shares shares = bestShares(Bandwidths::even(workers, servers, 1));
  const double onServers = kBound * std::accumulate(shares.servers.begin(), shares.servers.end(), 0.0);
  std::vector<Part> parts = cutTensors(tensorBytes, kPartBytes);
  for (Part& part : parts) {
    const uint64_t key = (static_cast<uint64_t>(part.tensor) << 16) + part.begin / kPartBytes;
    const uint64_t hash = djb2(key) % kBound;
    part.machine = static_cast<double>(hash) < onServers ? workers + djb2(hash) % servers : djb2(hash) % workers;
  }
  return parts;
}

Shares sharesOf(const std::vector<Part>& parts, size_t workers, size_t servers) {
  Shares shares{std::vector<double>(workers, 0), std::vector<double>(servers, 0)};
  uint64_t all = 0;
  for (const Part& part : parts) all += part.bytes();
  TREADLE_CHECK(all > 0, "shares of nothing");
  for (const Part& part : parts) {
    double& share = part.machine < workers ? shares.workers[part.machine] : shares.servers[part.machine - workers];
    share += static_cast<double>(part.bytes()) / static_cast<double>(all);
  }
  return shares;
}

}  // namespace treadle::summation

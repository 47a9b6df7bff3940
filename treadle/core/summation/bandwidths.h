#pragma once
// The machines of a job that sums through a summation service, by their network. Plain values.

#include <cstddef>
#include <numeric>
#include <vector>

namespace treadle::summation {

// Bytes per second that a machine can send while it receives as many; all above 0. There is at least one worker.
struct Bandwidths {
  std::vector<double> workers;
  std::vector<double> servers;  // machines that only sum

  static Bandwidths even(size_t workers, size_t servers, double each) {
    return {std::vector<double>(workers, each), std::vector<double>(servers, each)};
  }
};

// A number for each machine.
struct PerMachine {
  std::vector<double> workers, servers;

  double sum() const {
    return std::accumulate(workers.begin(), workers.end(), 0.0) + std::accumulate(servers.begin(), servers.end(), 0.0);
  }
};

}  // namespace treadle::summation

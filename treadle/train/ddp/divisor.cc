#include "treadle/train/ddp/divisor.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace treadle::ddp {
namespace {

double weightOf(const RankReport& report, Divisor divisor) {
  switch (divisor) {
    case Divisor::kWorldSize:
    case Divisor::kSum: return 1;
    case Divisor::kActiveRanks: return report.active ? 1 : 0;
    case Divisor::kWeights: break;
  }
  return report.weight;
}

Status unusableSum(double sum) {
  std::ostringstream text;
  text << "the weights of the group's ranks add up to " << sum
       << ", by which a double cannot be divided: give setWeight numbers of samples or tokens";
  return failedPrecondition(text.str());
}

}  // namespace

const char* nameOf(Divisor divisor) {
  switch (divisor) {
    case Divisor::kWorldSize: return "kWorldSize";
    case Divisor::kActiveRanks: return "kActiveRanks";
    case Divisor::kSum: return "kSum";
    case Divisor::kWeights: break;
  }
  return "kWeights";
}

Result<Shares> sharesOf(Divisor divisor, const std::vector<RankReport>& reports) {
  const auto ranks = static_cast<double>(reports.size());
  Shares shares{.ofRanks = std::vector<double>(reports.size(), 1 / ranks)};
  const auto active = std::find_if(reports.begin(), reports.end(), [](const RankReport& one) { return one.active; });
  if (active != reports.end()) shares.authority = static_cast<int>(active - reports.begin());
  double sum = 0;  // in the order of ranks
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const double weight = weightOf(reports[rank], divisor);
    if (!(weight >= 0) || !std::isfinite(weight))
      return failedPrecondition("rank " + std::to_string(rank) + " of the group has the weight " +
                                std::to_string(weight) + ": weights are finite and not negative");
    sum += weight;
  }
  shares.isEmpty = sum == 0;
  if (shares.isEmpty) return shares;
  for (size_t rank = 0; rank < reports.size(); ++rank) shares.ofRanks[rank] = weightOf(reports[rank], divisor) / sum;
  shares.factor = divisor == Divisor::kSum ? ranks : ranks / sum;
  if (!std::isfinite(sum) || !std::isfinite(shares.factor)) return unusableSum(sum);
  return shares;
}

}  // namespace treadle::ddp

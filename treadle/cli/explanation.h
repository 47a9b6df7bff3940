#pragma once
// `treadle plan --explain`: where the time of a run's sums has gone, and how it compares with the least that the
// network allows. As a table with advice, or JSON.

#include <optional>
#include <string>
#include <vector>

#include "treadle/core/base/status.h"
#include "treadle/core/summation/bandwidths.h"
#include "treadle/core/summation/times.h"

namespace treadle::cli {

// A summation service of a run, by the machines whose times are known, in the order of the service.
using ServiceRun = std::vector<SummationTimes>;

// The services whose times are in the folder, by number. InvalidArgument: it has none, or a file that is none.
Result<std::vector<ServiceRun>> readRuns(const std::string& folder);

// The bandwidths of the service's machines, if they are known. Pure. The legend stands once, below all tables.
std::string explanationTable(const ServiceRun& run, const std::optional<summation::Bandwidths>& bandwidths);
std::string explanationLegend();
std::string explanationJson(const std::vector<ServiceRun>& runs,
                            const std::vector<std::optional<summation::Bandwidths>>& bandwidths);

}  // namespace treadle::cli

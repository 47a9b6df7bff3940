#pragma once
// `treadle plan --machine FILE`: how the GPUs of one machine would sum, and the time that its links need for that. As
// a table with a picture of the machine, or JSON. Pure, except that `readTopologyPlan` reads the file.

#include <string>

#include "treadle/core/base/status.h"
#include "treadle/core/summation/local_plan.h"

namespace treadle::cli {

struct TopologyPlan {
  summation::Topology topology;
  uint64_t bytes = 0;
  summation::LocalPlan plan = {};
};

// `bytes` is the text of --bytes. InvalidArgument names the file and the fault in it, or --bytes.
Result<TopologyPlan> readTopologyPlan(const std::string& file, const std::string& bytes);

std::string topologyTable(const TopologyPlan& plan);
std::string topologyJson(const TopologyPlan& plan);

}  // namespace treadle::cli

#pragma once
// `treadle plan`: what a collective operation would do, as a table or JSON. Pure: it talks to no worker.

#include <string>

#include "treadle/core/group/choice.h"

namespace treadle::cli {

// The names of treadle/core/group: "allReduce", "float32", "sum", "ring". InvalidArgument lists those that there are.
Result<group::OperationKind> operationNamed(const std::string& name);
Result<group::DataType> dataTypeNamed(const std::string& name);
Result<group::ReduceOp> reduceOpNamed(const std::string& name);
Result<group::Algorithm> algorithmNamed(const std::string& name);

struct PlannedCall {
  group::Description what;
  group::Surroundings surroundings = group::Surroundings::onOneHost(2);
  group::SumOrder sumOrder = group::SumOrder::kAny;
};

// Each algorithm with its cost and predicted time, or why it cannot do the operation; the one in the description is
// marked.
std::string planTable(const PlannedCall& call);
std::string planJson(const PlannedCall& call);

}  // namespace treadle::cli

#include "treadle/cli/plan.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "treadle/cli/numbers.h"
#include "treadle/core/group/choice.h"
#include "treadle/core/group/cost.h"

namespace treadle::cli {
namespace {

using group::Algorithm;
using group::Description;
using group::OperationKind;

struct Row {
  Algorithm algorithm;
  std::optional<group::Cost> cost;  // none: it cannot do the operation
  std::string obstacle;
};

std::vector<Row> rowsOf(PlannedCall call) {
  std::vector<Row> rows;
  for (uint8_t value = 0; value < UINT8_MAX; ++value) {
    if (!group::isAlgorithm(value)) continue;
    const auto algorithm = static_cast<Algorithm>(value);
    Row& row = rows.emplace_back(
        Row{algorithm, {}, std::string(obstacleTo(algorithm, call.what, call.members, call.sumOrder))});
    call.what.algorithm = algorithm;
    if (row.obstacle.empty()) row.cost = costOf(call.what, call.members);
  }
  return rows;
}

// The value with that name, of those that `isOne` says there are. `nameOf` yields a name for each.
template <class T, class IsOne, class NameOf>
Result<T> named(const char* kind, const std::string& name, IsOne isOne, NameOf nameOf) {
  std::string all;
  for (uint8_t value = 0; value < UINT8_MAX; ++value) {
    if (!isOne(value)) continue;
    const std::string one(nameOf(static_cast<T>(value)));
    if (one == name) return static_cast<T>(value);
    all += (all.empty() ? "" : ", ") + one;
  }
  return invalidArgument(std::string("there is no ") + kind + " '" + name + "'; there are " + all);
}

// "allReduce", without what it is of.
std::string nameOfOperation(OperationKind operation) {
  Description what;
  what.operation = operation;
  const std::string text = describe(what);
  return text.substr(0, text.find(' '));
}

}  // namespace

Result<OperationKind> operationNamed(const std::string& name) {
  const auto isOne = [](uint8_t value) {
    return value >= 1 && value <= static_cast<uint8_t>(OperationKind::kAllToAll);
  };
  return named<OperationKind>("operation", name, isOne, nameOfOperation);
}

Result<group::DataType> dataTypeNamed(const std::string& name) {
  return named<group::DataType>("type", name, group::isDataType, [](group::DataType type) { return nameOf(type); });
}

Result<group::ReduceOp> reduceOpNamed(const std::string& name) {
  return named<group::ReduceOp>("reduction", name, group::isReduceOp, [](group::ReduceOp op) { return nameOf(op); });
}

Result<Algorithm> algorithmNamed(const std::string& name) {
  return named<Algorithm>("algorithm", name, group::isAlgorithm, [](Algorithm algorithm) { return nameOf(algorithm); });
}

std::string planTable(const PlannedCall& call) {
  std::string text = describe(call.what) + " among " + std::to_string(call.members) + " members\n\n" +
                     "   algorithm  messages  data sent  steps\n";
  for (const Row& row : rowsOf(call)) {
    text += (row.algorithm == call.what.algorithm ? "-> " : "   ") + padded(std::string(nameOf(row.algorithm)), 11);
    if (!row.cost) {
      text += "cannot: " + row.obstacle + "\n";
      continue;
    }
    text += padded(std::to_string(row.cost->messages), 10) +
            padded(bytesText(static_cast<double>(row.cost->bytes)), 11) + std::to_string(row.cost->steps) + "\n";
  }
  return text +
         "\nmessages, data sent: by the member that sends most, with the agreement and without acknowledgements\n" +
         "steps: messages that wait for one another, in the longest such chain\n";
}

std::string planJson(const PlannedCall& call) {
  nlohmann::ordered_json json;
  json["operation"] = describe(call.what);
  json["members"] = call.members;
  json["chosen"] = nameOf(call.what.algorithm);
  for (const Row& row : rowsOf(call)) {
    nlohmann::ordered_json one = {{"algorithm", nameOf(row.algorithm)}};
    if (row.cost) {
      one["messages"] = row.cost->messages;
      one["bytes"] = row.cost->bytes;
      one["steps"] = row.cost->steps;
    } else {
      one["cannot"] = row.obstacle;
    }
    json["algorithms"].push_back(std::move(one));
  }
  return json.dump(2) + "\n";
}

}  // namespace treadle::cli

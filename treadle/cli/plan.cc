#include "treadle/cli/plan.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "treadle/cli/numbers.h"
#include "treadle/core/group/cost.h"
#include "treadle/core/group/prediction.h"

namespace treadle::cli {
namespace {

using group::Algorithm;
using group::Description;
using group::OperationKind;

struct Row {
  Algorithm algorithm;
  std::optional<group::Cost> cost;  // none: it cannot do the operation
  std::string obstacle;
  group::Prediction prediction;
};

int membersOf(const PlannedCall& call) { return call.surroundings.placement.members(); }

std::vector<Row> rowsOf(PlannedCall call) {
  std::vector<Row> rows;
  for (uint8_t value = 1; group::isAlgorithm(value); ++value) {
    const auto algorithm = static_cast<Algorithm>(value);
    Row& row = rows.emplace_back(Row{
        algorithm, {}, std::string(obstacleTo(algorithm, call.what, call.surroundings.placement, call.sumOrder)), {}});
    call.what.algorithm = algorithm;
    if (!row.obstacle.empty()) continue;
    row.cost = costOf(call.what, call.surroundings.placement);
    row.prediction = predict(algorithm, call.what, call.surroundings.placement, call.surroundings.costs);
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

// The bound that is the time.
const char* limitOf(const group::Prediction& prediction) {
  if (prediction.seconds() == prediction.path) return "path";
  return prediction.seconds() == prediction.cores ? "cores" : "network";
}

double chosenSeconds(const std::vector<Row>& rows, const PlannedCall& call) {
  for (const Row& row : rows)
    if (row.algorithm == call.what.algorithm) return row.prediction.seconds();
  return 0;
}

std::string costsText(const PlannedCall& call) {
  const int hosts = call.surroundings.placement.hosts();
  return "with --hosts " + std::to_string(hosts) + " " + describe(call.surroundings.costs) + "\n";
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
  const std::vector<Row> rows = rowsOf(call);
  const double chosen = chosenSeconds(rows, call);
  std::string text = describe(call.what) + " among " + std::to_string(membersOf(call)) + " members\n" +
                     costsText(call) + "\n   algorithm     messages  data sent  steps  time      limit    compared\n";
  for (const Row& row : rows) {
    text += (row.algorithm == call.what.algorithm ? "-> " : "   ") + padded(std::string(nameOf(row.algorithm)), 14);
    if (!row.cost) {
      text += "cannot: " + row.obstacle + "\n";
      continue;
    }
    text += padded(std::to_string(row.cost->messages), 10) +
            padded(bytesText(static_cast<double>(row.cost->bytes)), 11) + padded(std::to_string(row.cost->steps), 7) +
            padded(timeText(row.prediction.seconds() * 1e6), 10) + padded(limitOf(row.prediction), 9) +
            fixed(row.prediction.seconds() / chosen, 2) + "\n";
  }
  return text +
         "\nmessages, data sent: by the member that sends most, with the agreement and without acknowledgements\n" +
         "steps: messages that wait for one another, in the longest such chain\n"
         "time: predicted; limit: what it is bound by: the path through such a chain, the cores of a host, its "
         "network\n"
         "compared: the time in times that of the marked algorithm; of equal ones a group takes the first\n";
}

std::string planJson(const PlannedCall& call) {
  nlohmann::ordered_json json;
  json["operation"] = describe(call.what);
  json["members"] = membersOf(call);
  json["hosts"] = call.surroundings.placement.hosts();
  json["costs"] = describe(call.surroundings.costs);
  json["chosen"] = nameOf(call.what.algorithm);
  for (const Row& row : rowsOf(call)) {
    nlohmann::ordered_json one = {{"algorithm", nameOf(row.algorithm)}};
    if (row.cost) {
      one["messages"] = row.cost->messages;
      one["bytes"] = row.cost->bytes;
      one["steps"] = row.cost->steps;
      one["seconds"] = row.prediction.seconds();
      one["limit"] = limitOf(row.prediction);
    } else {
      one["cannot"] = row.obstacle;
    }
    json["algorithms"].push_back(std::move(one));
  }
  return json.dump(2) + "\n";
}

}  // namespace treadle::cli

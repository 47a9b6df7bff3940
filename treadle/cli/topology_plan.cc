#include "treadle/cli/topology_plan.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "treadle/cli/numbers.h"

namespace treadle::cli {
namespace {

using summation::LinkLoad;
using summation::LocalWay;
using summation::Topology;

constexpr const char* kDefaultLocalBytes = "64000000";

std::string gigabytesText(double bandwidth) {
  return std::isinf(bandwidth) ? "no limit given" : fixed(bandwidth / 1e9, 1) + " GB/s";
}

Result<std::string> readMachineFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text(summation::kMostTopologyBytes + 1, '\0');  // one more: the parser refuses what is too large
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(file.gcount()));
  if (file.bad() || (text.empty() && !file.eof())) return invalidArgument("it cannot be read");
  return text;
}

std::string machinePicture(const Topology& topology) {
  std::string text = "cpu, memory: " + gigabytesText(topology.memory) + "\n";
  const auto nicsUnder = [&](std::optional<size_t> one, const std::string& indent) {
    for (const Topology::Nic& nic : topology.nics)
      if (nic.underSwitch == one)
        text += indent + "+-- " + padded(nic.name, 6) + " NIC     " + gigabytesText(nic.link) + "\n";
  };
  nicsUnder({}, "");
  for (size_t one = 0; one < topology.switches.size(); ++one) {
    const bool isLast = one + 1 == topology.switches.size();
    const std::string indent = isLast ? "    " : "|   ";
    text += "+-- " + padded(topology.switches[one].name, 6) + " switch  " +
            gigabytesText(topology.switches[one].uplink) + "\n";
    for (const size_t gpu : topology.gpusUnder(one))
      text += indent + "+-- " + padded(topology.gpus[gpu].name, 6) + " GPU     " +
              gigabytesText(topology.gpus[gpu].link) + "\n";
    nicsUnder(one, indent);
  }
  if (!topology.nvlinks.empty()) text += countText(topology.nvlinks.size(), "NVLink") + " between GPUs\n";
  return text;
}

std::string endsOf(const LinkLoad& link) { return link.first + " - " + link.second; }

std::string wayTable(const summation::LocalPlan& plan) {
  const double least = plan.chosen().seconds();
  std::string text = "   way             time        compared  busiest link\n";
  for (const LocalWay& way : plan.ways) {
    const bool isChosen = &way == &plan.chosen();
    text += (isChosen ? "-> " : "   ") + padded(way.name, 16) + padded(timeText(way.seconds() * 1e6), 12) +
            padded(least == 0 ? "-" : fixed(way.seconds() / least, 3), 10) +
            (way.seconds() == 0 ? "-" : endsOf(way.bottleneck())) + "\n";
  }
  return text;
}

// Of the links that carry something.
std::string linkTable(const LocalWay& way) {
  size_t width = 16;
  for (const LinkLoad& link : way.links) width = std::max(width, endsOf(link).size());
  std::string text = "   " + padded("link", width) + "  bandwidth       there       back        time        busy\n";
  for (const LinkLoad& link : way.links) {
    if (link.up + link.down == 0) continue;
    text += "   " + padded(endsOf(link), width) + "  " + padded(gigabytesText(link.bandwidth), 16) +
            padded(bytesText(static_cast<double>(link.up)), 12) +
            padded(bytesText(static_cast<double>(link.down)), 12) + padded(timeText(link.seconds() * 1e6), 12) +
            (way.seconds() == 0 ? "-" : fixed(100 * link.seconds() / way.seconds(), 0) + "%") + "\n";
  }
  return text;
}

nlohmann::ordered_json wayJson(const LocalWay& way) {
  nlohmann::ordered_json json = {{"name", way.name},
                                 {"seconds", way.seconds()},
                                 {"busiest", {way.bottleneck().first, way.bottleneck().second}},
                                 {"steps", nlohmann::ordered_json::array()},
                                 {"links", nlohmann::ordered_json::array()}};
  for (const summation::LocalStep& step : way.steps) json["steps"].push_back(step.what);
  for (const LinkLoad& link : way.links) {
    nlohmann::ordered_json one = {{"ends", {link.first, link.second}},
                                  {"bytes_there", link.up},
                                  {"bytes_back", link.down},
                                  {"seconds", link.seconds()}};
    if (!std::isinf(link.bandwidth)) one["bytes_per_second"] = link.bandwidth;
    json["links"].push_back(std::move(one));
  }
  return json;
}

}  // namespace

Result<TopologyPlan> readTopologyPlan(const std::string& file, const std::string& bytes) {
  const auto count = numberIn<uint64_t>(bytes.empty() ? kDefaultLocalBytes : bytes, 1, summation::kMostLocalBytes);
  if (!count) return invalidArgument("--bytes is '" + bytes + "', not a number of bytes");
  Result<std::string> text = readMachineFile(file);
  if (!text.ok()) return text.status().withContext("--machine is '" + file + "'");
  Result<Topology> topology = summation::parseTopology(*text);
  if (!topology.ok()) return topology.status().withContext("--machine is '" + file + "'");
  TopologyPlan plan{std::move(*topology), *count};
  plan.plan = planLocally(plan.topology, plan.bytes);
  return plan;
}

std::string topologyTable(const TopologyPlan& plan) {
  const LocalWay& chosen = plan.plan.chosen();
  std::string text = "sum of " + bytesText(static_cast<double>(plan.bytes)) + " from each of " +
                     countText(plan.topology.gpus.size(), "GPU") +
                     (plan.topology.nics.empty() ? "" : ", over the network") + "\n\n" + machinePicture(plan.topology) +
                     "\n" + wayTable(plan.plan) + "\n" + chosen.name + ": " + plan.plan.why + "\n";
  for (const std::string& note : plan.plan.notes) text += "note: " + note + "\n";
  if (chosen.steps.empty()) return text;
  text += "\n";
  for (size_t i = 0; i < chosen.steps.size(); ++i)
    text += "   " + std::to_string(i + 1) + ". " + chosen.steps[i].what + "\n";
  return text + "\n" + linkTable(chosen) +
         "\nthere, back: what the link carries from its first end to its second one, and back; the steps overlap, so "
         "the busiest link\nsets the time; this is a prediction, and nothing ran on a GPU\n";
}

std::string topologyJson(const TopologyPlan& plan) {
  nlohmann::ordered_json json = {
      {"bytes", plan.bytes},  {"gpus", plan.topology.gpus.size()}, {"chosen", plan.plan.chosen().name},
      {"why", plan.plan.why}, {"notes", plan.plan.notes},          {"ways", nlohmann::ordered_json::array()}};
  for (const LocalWay& way : plan.plan.ways) json["ways"].push_back(wayJson(way));
  return json.dump(2) + "\n";
}

}  // namespace treadle::cli

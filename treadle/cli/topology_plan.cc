#include "treadle/cli/topology_plan.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "treadle/cli/numbers.h"
#include "treadle/cli/service_plan.h"
#include "treadle/cli/topology_file.h"
#include "treadle/core/io/fd.h"

namespace treadle::cli {
namespace {

using summation::LinkLoad;
using summation::LocalStrategy;
using summation::Topology;

constexpr size_t kMostRows = 16;  // of links

std::string gigabytesText(double bandwidth) {
  if (std::isinf(bandwidth)) return "no limit given";
  std::ostringstream text;
  text << std::setprecision(7) << bandwidth / 1e9 << " GB/s";
  return text.str();
}

Result<std::string> readMachineFile(const std::string& path) {
  const io::Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::string text(kMostTopologyBytes + 1, '\0');  // one more: the parser refuses what is too large
  size_t size = 0;
  ssize_t count = file.valid() ? 1 : -1;
  while (count > 0 && size < text.size()) {
    count = ::read(file.get(), text.data() + size, text.size() - size);
    size += static_cast<size_t>(std::max(count, ssize_t{0}));
  }
  if (count < 0) return io::errnoStatus(Code::kInvalidArgument, "it cannot be read", errno);
  text.resize(size);
  return text;
}

std::string machinePicture(const Topology& topology) {
  size_t width = 0;
  for (const auto& one : topology.switches) width = std::max(width, one.name.size());
  for (const auto& gpu : topology.gpus) width = std::max(width, gpu.name.size());
  for (const auto& nic : topology.nics) width = std::max(width, nic.name.size());
  std::string text = "cpu, memory: " + gigabytesText(topology.memory) + "\n";
  const auto add = [&](const std::string& indent, const std::string& name, const char* kind, double bandwidth) {
    text += indent + "+-- " + padded(name, width) + "  " + padded(kind, 8) + gigabytesText(bandwidth) + "\n";
  };
  const auto addNics = [&](std::optional<size_t> switchIndex, const std::string& indent) {
    for (const auto& nic : topology.nics)
      if (nic.underSwitch == switchIndex) add(indent, nic.name, "NIC", nic.link);
  };
  addNics({}, "");
  for (size_t i = 0; i < topology.switches.size(); ++i) {
    const std::string indent = i + 1 == topology.switches.size() ? "    " : "|   ";
    add("", topology.switches[i].name, "switch", topology.switches[i].uplink);
    for (const size_t gpu : topology.gpusUnder(i)) add(indent, topology.gpus[gpu].name, "GPU", topology.gpus[gpu].link);
    addNics(i, indent);
  }
  if (!topology.nvlinks.empty()) text += countText(topology.nvlinks.size(), "NVLink") + " between GPUs\n";
  return text;
}

std::string endsOf(const LinkLoad& link) { return link.first + " - " + link.second; }

std::string strategyTable(const summation::LocalPlan& plan) {
  const double least = plan.chosen().seconds();
  std::string text = "   strategy        time        compared  busiest link\n";
  for (const LocalStrategy& one : plan.strategies) {
    const double seconds = one.seconds();
    text += (&one == &plan.chosen() ? "-> " : "   ") + padded(one.name, 16) + padded(timeText(seconds * 1e6), 12) +
            padded(least == 0 ? "-" : fixed(seconds / least, 3), 10) + (seconds == 0 ? "-" : endsOf(one.busiest())) +
            "\n";
  }
  return text;
}

std::vector<LinkLoad> usedLinks(const LocalStrategy& strategy) {
  std::vector<LinkLoad> links = strategy.links;
  std::erase_if(links, [](const LinkLoad& link) { return link.up + link.down == 0; });
  return links;
}

// The busiest links first.
std::string linkTable(const LocalStrategy& strategy) {
  std::vector<LinkLoad> links = usedLinks(strategy);
  std::ranges::stable_sort(links, std::greater(), &LinkLoad::seconds);
  const size_t more = links.size() - std::min(links.size(), kMostRows);
  links.resize(links.size() - more);
  size_t width = 16;
  for (const LinkLoad& link : links) width = std::max(width, endsOf(link).size());
  std::string text = "   " + padded("link", width) + "  bandwidth       to CPU      from CPU    time        busy\n";
  for (const LinkLoad& link : links)
    text += "   " + padded(endsOf(link), width) + "  " + padded(gigabytesText(link.bandwidth), 16) +
            padded(bytesText(static_cast<double>(link.up)), 12) +
            padded(bytesText(static_cast<double>(link.down)), 12) + padded(timeText(link.seconds() * 1e6), 12) +
            fixed(100 * link.seconds() / strategy.seconds(), 0) + "%\n";
  return more == 0 ? text : text + "   and " + countText(more, "less busy link") + "\n";
}

nlohmann::ordered_json strategyJson(const LocalStrategy& strategy) {
  nlohmann::ordered_json json = {{"name", strategy.name},
                                 {"seconds", strategy.seconds()},
                                 {"busiest", nullptr},
                                 {"steps", nlohmann::ordered_json::array()},
                                 {"links", nlohmann::ordered_json::array()}};
  if (strategy.seconds() > 0) json["busiest"] = {strategy.busiest().first, strategy.busiest().second};
  for (const summation::LocalStep& step : strategy.steps) json["steps"].push_back(step.what);
  for (const LinkLoad& link : usedLinks(strategy)) {
    nlohmann::ordered_json one = {{"ends", {link.first, link.second}},
                                  {"bytes_to_second", link.up},
                                  {"bytes_to_first", link.down},
                                  {"seconds", link.seconds()}};
    if (!std::isinf(link.bandwidth)) one["bytes_per_second"] = link.bandwidth;
    json["links"].push_back(std::move(one));
  }
  return json;
}

}  // namespace

Result<TopologyPlan> readTopologyPlan(const std::string& file, const std::string& bytes) {
  Result<uint64_t> count = bytesOfSum(bytes);
  if (!count.ok()) return std::move(count).status();
  Result<std::string> text = readMachineFile(file);
  Result<Topology> topology = text.ok() ? parseTopology(*text) : text.status();
  if (!topology.ok()) return topology.status().withContext("--machine is '" + file + "'");
  TopologyPlan plan{std::move(*topology), *count};
  plan.plan = planLocally(plan.topology, plan.bytes);
  return plan;
}

std::string topologyTable(const TopologyPlan& plan) {
  const LocalStrategy& chosen = plan.plan.chosen();
  std::string text = "sum of " + bytesText(static_cast<double>(plan.bytes)) + " from each of " +
                     countText(plan.topology.gpus.size(), "GPU") +
                     (plan.topology.nics.empty() ? "" : ", over the network") + "\n\n" + machinePicture(plan.topology) +
                     "\n" + strategyTable(plan.plan) + "\n" + chosen.name + ": " + plan.plan.why + "\n";
  for (const std::string& note : plan.plan.notes) text += "note: " + note + "\n";
  if (chosen.steps.empty()) return text;
  text += "\n";
  for (size_t i = 0; i < chosen.steps.size(); ++i)
    text += "   " + std::to_string(i + 1) + ". " + chosen.steps[i].what + "\n";
  return text + "\n" + linkTable(chosen) +
         "\nThe two columns of an NVLink are to its second GPU and to its first one. The steps overlap, so the busiest "
         "link sets\nthe time. This is a prediction: nothing ran on a GPU.\n";
}

std::string topologyJson(const TopologyPlan& plan) {
  nlohmann::ordered_json json = {
      {"bytes", plan.bytes},  {"gpus", plan.topology.gpus.size()}, {"chosen", plan.plan.chosen().name},
      {"why", plan.plan.why}, {"notes", plan.plan.notes},          {"strategies", nlohmann::ordered_json::array()}};
  for (const LocalStrategy& one : plan.plan.strategies) json["strategies"].push_back(strategyJson(one));
  return json.dump(2) + "\n";
}

}  // namespace treadle::cli

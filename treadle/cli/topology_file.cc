#include "treadle/cli/topology_file.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "treadle/core/base/error.h"

namespace treadle::cli {
namespace {

using Json = nlohmann::json;
using Fields = std::initializer_list<std::string_view>;
using summation::Topology;

constexpr double kLeastGigabytes = 1e-3, kMostGigabytes = 1e6;
constexpr size_t kLongestName = 32;

// Tables and messages can show such a name without escapes.
bool isNameCharacter(char one) { return one > ' ' && one < 0x7f && one != '\'' && one != '"' && one != '\\'; }

// A file may choose any text for a field.
std::string quotedName(std::string field) {
  field.resize(std::min(field.size(), kLongestName));
  std::ranges::replace_if(field, std::not_fn(isNameCharacter), '?');
  return "'" + field + "'";
}

// "line 3, column 5": where the byte with that number is. Counts from 1.
std::string placeInText(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, std::max(byte, size_t{1}) - 1);
  return "line " + std::to_string(1 + std::ranges::count(before, '\n')) + ", column " +
         std::to_string(before.size() - (before.rfind('\n') + 1) + 1);
}

[[noreturn]] void refuseFile(const std::string& why) { raise(invalidArgument(why)); }

// The library would end at a zero byte, and keep the last of two fields with one name.
Json parsedJson(std::string_view text) {
  if (text.empty()) refuseFile("it is empty");
  if (text.size() > kMostTopologyBytes) refuseFile("it has more than 1 MiB");
  if (const size_t zero = text.find('\0'); zero != text.npos)
    refuseFile("it has a zero byte, at " + placeInText(text, zero + 1));
  std::map<int, std::set<std::string>> fields;  // by depth
  const auto look = [&](int depth, Json::parse_event_t event, const Json& value) {
    if (event == Json::parse_event_t::object_start) fields[depth + 1].clear();
    if (event == Json::parse_event_t::key && !fields[depth].insert(value.get<std::string>()).second)
      refuseFile("it has the field " + quotedName(value.get<std::string>()) + " twice");
    return true;
  };
  try {
    return Json::parse(text, look);
  } catch (const Json::parse_error& error) {
    refuseFile("it is not valid JSON, at " + placeInText(text, error.byte));
  } catch (const Json::exception&) {  // the library's other error here
    refuseFile("a number in it is too large");
  }
}

void checkFields(const Json& entry, const std::string& where, Fields required, Fields optional) {
  if (!entry.is_object()) refuseFile(where + " is not a JSON object");
  const auto isIn = [](Fields fields, std::string_view name) { return std::ranges::count(fields, name) > 0; };
  for (const auto& item : entry.items())
    if (!isIn(required, item.key()) && !isIn(optional, item.key()))
      refuseFile(where + " has the unknown field " + quotedName(item.key()));
  for (const std::string_view field : required)
    if (!entry.contains(field)) refuseFile(where + " has no field '" + std::string(field) + "'");
}

std::string nameIn(const Json& value, const std::string& where) {
  const std::string name = value.is_string() ? value.get<std::string>() : "";
  if (name.empty() || name.size() > kLongestName || !std::ranges::all_of(name, isNameCharacter))
    refuseFile(where + " is not a name of 1 to 32 ASCII characters without spaces, quotes and backslashes");
  return name;
}

double bytesPerSecondIn(const Json& value, const std::string& where) {
  if (value.is_string()) refuseFile(where + " is not a number (write 10, not \"10\")");
  if (!value.is_number()) refuseFile(where + " is not a number");
  const auto gigabytes = value.get<double>();
  if (gigabytes < kLeastGigabytes || gigabytes > kMostGigabytes)
    refuseFile(where + " is not a bandwidth from 0.001 to 1000000 GB/s");
  return gigabytes * 1e9;
}

// The index of the device with that name. `what`: "switch" or "GPU".
template <class Device>
size_t indexIn(const std::vector<Device>& devices, const Json& value, const std::string& where, const char* what) {
  const std::string name = nameIn(value, where);
  const auto found = std::ranges::find(devices, name, &Device::name);
  if (found == devices.end()) refuseFile(where + " is '" + name + "', which is not a " + what);
  return static_cast<size_t>(found - devices.begin());
}

// An entry of a list, with its place in the file: "gpus[2]".
struct Entry {
  const Json& json;
  std::string where;

  double bandwidth(const std::string& field) const { return bytesPerSecondIn(json[field], where + "." + field); }
};

std::vector<Entry> entriesOf(const Json& root, const std::string& field, size_t most, Fields required,
                             Fields optional = {}) {
  std::vector<Entry> entries;
  if (!root.contains(field)) return entries;
  const Json& list = root[field];
  if (!list.is_array()) refuseFile(field + " is not a list");
  if (list.size() > most) refuseFile(field + " has more than " + std::to_string(most) + " entries");
  for (const Json& json : list) {
    entries.push_back({json, field + "[" + std::to_string(entries.size()) + "]"});
    checkFields(json, entries.back().where, required, optional);
  }
  return entries;
}

void readNvLinks(const Entry& entry, std::set<std::pair<size_t, size_t>>* linked, Topology* topology) {
  const double link = entry.bandwidth("link");
  const Json& names = entry.json["gpus"];
  if (!names.is_array() || names.size() < 2 || names.size() > kMostDevices)
    refuseFile(entry.where + ".gpus is not a list of 2 to " + std::to_string(kMostDevices) + " GPUs");
  std::vector<size_t> gpus;
  for (const Json& json : names) {
    const size_t second =
        indexIn(topology->gpus, json, entry.where + ".gpus[" + std::to_string(gpus.size()) + "]", "GPU");
    const std::string& name = topology->gpus[second].name;
    for (const size_t first : gpus) {
      if (first == second) refuseFile(entry.where + " names the GPU '" + name + "' twice");
      if (!linked->insert(std::minmax(first, second)).second)
        refuseFile(entry.where + ": '" + topology->gpus[first].name + "' and '" + name +
                   "' already have an NVLink in another entry; keep one");
      topology->nvlinks.push_back({first, second, link});
    }
    gpus.push_back(second);
  }
}

Topology readMachine(const Json& root) {
  Topology topology;
  std::set<std::string> names;
  const auto newName = [&](const Entry& entry) {
    std::string name = nameIn(entry.json["name"], entry.where + ".name");
    if (name == "cpu" || name == "memory")
      refuseFile(entry.where + ".name is '" + name + "', which is reserved; choose another");
    if (!names.insert(name).second) refuseFile(entry.where + ".name is '" + name + "', which another device has");
    return name;
  };
  const auto switchIn = [&](const Entry& entry) {
    return indexIn(topology.switches, entry.json["switch"], entry.where + ".switch", "switch");
  };
  checkFields(root, "the machine", {"switches", "gpus"}, {"nics", "nvlinks", "memory"});
  for (const Entry& entry : entriesOf(root, "switches", kMostDevices, {"name", "uplink"}))
    topology.switches.push_back({newName(entry), entry.bandwidth("uplink")});
  for (const Entry& entry : entriesOf(root, "gpus", kMostDevices, {"name", "switch", "link"}))
    topology.gpus.push_back({newName(entry), switchIn(entry), entry.bandwidth("link")});
  if (topology.gpus.empty()) refuseFile("gpus has no entry; a machine has at least one GPU");
  for (const Entry& entry : entriesOf(root, "nics", kMostDevices, {"name"}, {"switch", "link"})) {
    Topology::Nic nic{.name = newName(entry)};
    if (entry.json.contains("switch")) nic.underSwitch = switchIn(entry);
    if (entry.json.contains("link")) nic.link = entry.bandwidth("link");
    topology.nics.push_back(std::move(nic));
  }
  std::set<std::pair<size_t, size_t>> linked;
  for (const Entry& entry : entriesOf(root, "nvlinks", kMostDevices * (kMostDevices - 1) / 2, {"gpus", "link"}))
    readNvLinks(entry, &linked, &topology);
  if (root.contains("memory")) topology.memory = bytesPerSecondIn(root["memory"], "memory");
  return topology;
}

}  // namespace

Result<Topology> parseTopology(std::string_view json) try {
  return readMachine(parsedJson(json));
} catch (const ArgumentError& error) {
  return error.status();
}

}  // namespace treadle::cli

#include "treadle/core/summation/topology.h"

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

namespace treadle::summation {
namespace {

using Json = nlohmann::json;
using Fields = std::initializer_list<std::string_view>;

constexpr double kLeastGigabytes = 1e-3, kMostGigabytes = 1e6;
constexpr int kDeepest = 4;  // the names in an entry of `nvlinks`
constexpr size_t kLongestName = 32;

// A character that a table and a message can show.
bool isOfName(char one) { return one > ' ' && one < 0x7f && one != '\''; }

// A file may choose any text for a field.
std::string quotedName(std::string field) {
  field.resize(std::min(field.size(), kLongestName));
  std::ranges::replace_if(field, std::not_fn(isOfName), '?');
  return "'" + field + "'";
}

// Reads one description, and keeps the first error. After an error all that it reads has no meaning.
class TopologyReader {
 public:
  Result<Topology> read(std::string_view text) {
    const Json root = parsed(text);
    if (ok()) readMachine(root);
    if (!ok()) return status_;
    return std::move(topology_);
  }

 private:
  bool ok() const { return status_.ok(); }
  void fail(const std::string& why) {
    if (ok()) status_ = invalidArgument(why);
  }

  Json parsed(std::string_view text);
  void readMachine(const Json& root);
  void readNvLinks(const Json& entry, const std::string& where);
  void checkFields(const Json& entry, const std::string& where, Fields required, Fields optional = {});

  // Calls `one(entry, "gpus[2]")` for each entry of a list, which has the required fields then.
  template <class One>
  void forEach(const Json& root, const std::string& field, size_t most, Fields required, Fields optional, One one) {
    if (!ok() || !root.contains(field)) return;
    const Json& list = root[field];
    if (!list.is_array()) return fail(field + " is no list");
    if (list.size() > most) return fail(field + " has more than " + std::to_string(most) + " entries");
    for (size_t i = 0; ok() && i < list.size(); ++i) {
      const std::string where = field + "[" + std::to_string(i) + "]";
      checkFields(list[i], where, required, optional);
      if (ok()) one(list[i], where);
    }
  }

  std::string nameIn(const Json& value, const std::string& where) {
    const std::string name = value.is_string() ? value.get<std::string>() : "";
    if (name.empty() || name.size() > kLongestName || !std::ranges::all_of(name, isOfName))
      fail(where + " is no name of 1 to 32 ASCII characters without spaces and quotes");
    return name;
  }

  std::string newName(const Json& entry, const std::string& where) {
    std::string name = nameIn(entry["name"], where + ".name");
    if (!names_.insert(name).second) fail(where + ".name is '" + name + "', which another device has");
    return name;
  }

  // The index of the device with that name. `what`: "switch" or "GPU".
  template <class Device>
  size_t indexIn(const std::vector<Device>& devices, const Json& value, const std::string& where, const char* what) {
    const std::string name = nameIn(value, where);
    const auto found = std::ranges::find(devices, name, &Device::name);
    if (found == devices.end()) fail(where + " is '" + name + "', which is no " + what);
    return static_cast<size_t>(found - devices.begin());
  }

  size_t switchIn(const Json& entry, const std::string& where) {
    return indexIn(topology_.switches, entry["switch"], where + ".switch", "switch");
  }

  double bandwidthIn(const Json& value, const std::string& where) {
    const double gigabytes = value.is_number() ? value.get<double>() : 0;
    if (!(gigabytes >= kLeastGigabytes && gigabytes <= kMostGigabytes))
      fail(where + " is no bandwidth from 0.001 to 1000000 GB/s");
    return gigabytes * 1e9;
  }

  Topology topology_;
  std::set<std::string> names_;
  std::set<std::pair<size_t, size_t>> linked_;
  Status status_;
};

// The library would keep the last of two fields with one name. It leaves out of its tree what nests too deep.
Json TopologyReader::parsed(std::string_view text) {
  if (text.size() > kMostTopologyBytes) return fail("it has more than 1 MiB"), Json();
  std::vector<std::set<std::string>> fields(kDeepest + 1);
  const auto look = [&](int depth, Json::parse_event_t event, const Json& value) {
    using Event = Json::parse_event_t;
    const auto level = static_cast<size_t>(std::min(depth, kDeepest));
    if (event == Event::object_start || event == Event::array_start) {
      if (depth >= kDeepest) return fail("it nests deeper than any field does"), false;
      fields[level + 1].clear();
    }
    if (event == Event::key && !fields[level].insert(value.get<std::string>()).second)
      fail("it has the field " + quotedName(value.get<std::string>()) + " twice");
    return true;
  };
  try {
    return Json::parse(text, look);
  } catch (const Json::parse_error& error) {
    fail("it is no valid JSON, from byte " + std::to_string(error.byte) + " on");
  } catch (const Json::exception&) {  // the library's other error here
    fail("a number in it is too large");
  }
  return {};
}

void TopologyReader::readMachine(const Json& root) {
  checkFields(root, "the machine", {"switches", "gpus"}, {"nics", "nvlinks", "memory"});
  forEach(root, "switches", kMostDevices, {"name", "uplink"}, {}, [&](const Json& entry, const std::string& where) {
    topology_.switches.push_back({newName(entry, where), bandwidthIn(entry["uplink"], where + ".uplink")});
  });
  forEach(root, "gpus", kMostDevices, {"name", "switch", "link"}, {}, [&](const Json& entry, const std::string& where) {
    topology_.gpus.push_back(
        {newName(entry, where), switchIn(entry, where), bandwidthIn(entry["link"], where + ".link")});
  });
  if (topology_.gpus.empty()) fail("gpus has no entry; a machine has at least one GPU");
  forEach(root, "nics", kMostDevices, {"name"}, {"switch", "link"}, [&](const Json& entry, const std::string& where) {
    Topology::Nic nic{.name = newName(entry, where)};
    if (entry.contains("switch")) nic.underSwitch = switchIn(entry, where);
    if (entry.contains("link")) nic.link = bandwidthIn(entry["link"], where + ".link");
    topology_.nics.push_back(std::move(nic));
  });
  forEach(root, "nvlinks", kMostDevices * kMostDevices, {"gpus", "link"}, {},
          [&](const Json& entry, const std::string& where) { readNvLinks(entry, where); });
  if (ok() && root.contains("memory")) topology_.memory = bandwidthIn(root["memory"], "memory");
}

void TopologyReader::readNvLinks(const Json& entry, const std::string& where) {
  const double link = bandwidthIn(entry["link"], where + ".link");
  const Json& names = entry["gpus"];
  if (!names.is_array() || names.size() < 2 || names.size() > kMostDevices)
    return fail(where + ".gpus is no list of 2 to " + std::to_string(kMostDevices) + " GPUs");
  std::vector<size_t> gpus;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string here = where + ".gpus[" + std::to_string(i) + "]";
    const size_t second = indexIn(topology_.gpus, names[i], here, "GPU");
    for (const size_t first : gpus) {
      if (!ok()) return;
      if (first == second || !linked_.insert(std::minmax(first, second)).second)
        return fail(here + " is '" + topology_.gpus[second].name + "', which is or has a link to '" +
                    topology_.gpus[first].name + "'");
      topology_.nvlinks.push_back({first, second, link});
    }
    gpus.push_back(second);
  }
}

void TopologyReader::checkFields(const Json& entry, const std::string& where, Fields required, Fields optional) {
  if (!entry.is_object()) return fail(where + " is no JSON object");
  const auto isIn = [](Fields fields, std::string_view name) { return std::ranges::count(fields, name) > 0; };
  for (const auto& item : entry.items())
    if (!isIn(required, item.key()) && !isIn(optional, item.key()))
      fail(where + " has the unknown field " + quotedName(item.key()));
  for (const std::string_view field : required)
    if (!entry.contains(field)) fail(where + " has no field '" + std::string(field) + "'");
}

}  // namespace

std::vector<size_t> Topology::gpusUnder(size_t one) const {
  std::vector<size_t> under;
  for (size_t gpu = 0; gpu < gpus.size(); ++gpu)
    if (gpus[gpu].underSwitch == one) under.push_back(gpu);
  return under;
}

Result<Topology> parseTopology(std::string_view json) { return TopologyReader().read(json); }

}  // namespace treadle::summation

#include "treadle/core/rpc/functions.h"

#include "treadle/core/rpc/messages.h"

namespace treadle {

Functions& Functions::put(const void* key, Entry entry) {
  if (entry.name.empty()) raise(invalidArgument("a function that crosses the wire needs a name"));
  if (entry.name.size() > rpc::kMaxNameBytes)
    raise(invalidArgument("the name of a function has at most " + std::to_string(rpc::kMaxNameBytes) + " bytes, and '" +
                          entry.name.substr(0, 40) + "...' has " + std::to_string(entry.name.size())));
  auto found = entries_.find(entry.name);
  if (found == entries_.end()) {
    keys_.emplace_back(key, entry.name);
    std::string name = entry.name;
    entries_.emplace(std::move(name), Keyed{key, std::move(entry)});
    return *this;
  }
  Keyed& known = found->second;
  if (known.key != key || known.entry.signature != entry.signature)
    raise(invalidArgument("the name '" + entry.name + "' stands for a function " + known.entry.signature +
                          " already and cannot stand for another of " + entry.signature));
  const bool idempotent = known.entry.idempotent || entry.idempotent;
  if (known.entry.invoke == nullptr) known.entry = std::move(entry);  // declared first, added now
  known.entry.idempotent = idempotent;
  return *this;
}

Functions& Functions::merge(const Functions& other) {
  for (const auto& [key, name] : other.keys_) put(key, other.entries_.find(name)->second.entry);
  return *this;
}

const Functions::Entry* Functions::find(std::string_view name) const {
  auto found = entries_.find(name);
  return found == entries_.end() ? nullptr : &found->second.entry;
}

std::vector<const Functions::Entry*> Functions::entriesOf(const void* key) const {
  std::vector<const Entry*> entries;
  for (const auto& [each, name] : keys_)
    if (each == key) entries.push_back(find(name));
  return entries;
}

const Functions::Entry* Functions::firstOf(const void* key) const {
  for (const auto& [each, name] : keys_)
    if (each == key) return find(name);
  return nullptr;
}

std::string Functions::offered() const {
  std::string names;
  for (const auto& [name, keyed] : entries_)
    if (keyed.entry.invoke != nullptr) names += (names.empty() ? "" : ", ") + name;
  return names.empty() ? "none" : names;
}

}  // namespace treadle

// Collectives among several workers; this worker always takes part.

#include <algorithm>

#include "tests/soak/ensemble.h"
#include "tests/soak/operations.h"

namespace treadle::soak {
namespace {

using Names = std::vector<std::string>;

// Waits for all, so that the next operations of these groups find none of these under way.
void play(Client& client, const Names& members) {
  if (members.size() < 2) return;
  const Number seed = client.number();
  std::vector<Future<void>> parts;
  for (const std::string& member : members)
    parts.push_back(client.worker().async<&takePart>(member, client.name(), members, seed));
  client.bounded([&] { whenAll(parts).wait(); });
}

// Two, four or all workers, this one first.
Names some(Client& client) {
  constexpr size_t kMost[] = {2, 4, 100};
  Names members = client.peers().names();
  const auto self = std::find(members.begin(), members.end(), client.worker().self().name);
  if (self == members.end()) return {};  // the job has given it up
  std::rotate(members.begin(), self, members.end());
  members.resize(std::min(members.size(), kMost[client.below(std::size(kMost))]));
  return members;
}

// A member that is lost is named by the error, and a group of the others works; unless it loses one too.
void together(Client& client) {
  Names members = some(client);
  try {
    play(client, members);
  } catch (const PeerLostError& error) {
    const auto lost = std::find(members.begin(), members.end(), error.worker());
    if (lost == members.end()) throw Wrong("a group has lost '" + error.worker() + "', which is no member");
    members.erase(lost);
    if (error.worker() != client.worker().self().name) play(client, members);
    throw;
  }
}

}  // namespace

std::vector<Operation> groupOperations() { return {{"together", together, 3}}; }

}  // namespace treadle::soak

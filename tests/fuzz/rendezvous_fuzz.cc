// What travels at the rendezvous (cluster/rendezvous_messages.h).

#include <cmath>

#include "tests/fuzz/fuzzer.h"
#include "treadle/core/cluster/launch.h"
#include "treadle/core/cluster/rendezvous_messages.h"

namespace treadle::fuzz::rendezvous_fuzz {
namespace {

std::vector<std::byte> encoded(const cluster::RendezvousMessage& message) {
  switch (message.step) {
    case cluster::Step::kRegister: return cluster::encodeRegistration(message.registration);
    case cluster::Step::kRoster: return cluster::encodeRoster(message.roster, message.costs);
    case cluster::Step::kReady:
    case cluster::Step::kGo: return cluster::encodeStep(message.step);
    case cluster::Step::kFail: return cluster::encodeFailure(message.failure);
    case cluster::Step::kRank:
    case cluster::Step::kGone: return cluster::encodeRank(message.step, message.rank);
    case cluster::Step::kPresent: return cluster::encodePresent(message.present);
    case cluster::Step::kProbe: return cluster::encodeProbe(message.number, 0);
    case cluster::Step::kEcho: return cluster::encodeEcho(message.number);
  }
  return {};
}

void feed(Bytes input) {
  Result<cluster::RendezvousMessage> message = cluster::parseRendezvous(input);
  if (!message.ok()) return;
  promise(message->step != cluster::Step::kFail || !message->failure.ok(), "a failure has a reason");
  promise(message->present.workers.size() <= static_cast<size_t>(cluster::kMaxWorldSize), "so are those present");
  promise(message->roster.size() <= static_cast<size_t>(cluster::kMaxWorldSize), "a roster is that of a job");
  promise(isUsable(message->costs) && isUsable(message->present.costs), "costs are numbers above 0");
  // Time limits beyond a year are none, and what fills a probe is dropped, so that a second reading is what the first
  // one gave.
  std::vector<std::byte> again = encoded(*message);
  Result<cluster::RendezvousMessage> second = cluster::parseRendezvous(again);
  promise(second.ok() && encoded(*second) == again, "a message that is read can be written and read again");
  if (message->step != cluster::Step::kRegister && message->step != cluster::Step::kProbe)
    promise(again == std::vector<std::byte>(input.begin(), input.end()), "and is written as it came");
}

Inputs seeds() {
  std::vector<std::string> addresses = {"unix:treadle-1-2", "tcp://127.0.0.1:4000"};
  cluster::Roster roster = {{{"ps", 0}, addresses}, {{"trainer", 1}, {"tcp://[::1]:5"}}, {{"idle", 2}, {}}};
  return {cluster::encodeRegistration({4, addresses, kNoTimeout}),
          cluster::encodeRegistration({1, {}, std::chrono::seconds(300)}),
          cluster::encodeRoster(roster),
          cluster::encodeRoster({}),
          cluster::encodeRoster(roster, {{1e-6, 1e10}, {1e-4, 1e8}, 1e-6, 64}),
          cluster::encodeRoster(roster, {{std::nan(""), 1e10}, {1e-4, 1e8}, 1e-6, 64}),
          cluster::encodeRoster(roster, {{1e-6, -1e10}, {1e-4, 1e8}, 1e-6, 64}),
          cluster::encodeProbe(3, 100),
          cluster::encodeEcho(3),
          cluster::encodeRank(cluster::Step::kRank, 7),
          cluster::encodeRank(cluster::Step::kGone, 3),
          cluster::encodePresent({0, {{{"ps", 0}, addresses}, {{"late", 65'535}, {}}}}),
          cluster::encodeStep(cluster::Step::kReady),
          cluster::encodeStep(cluster::Step::kGo),
          cluster::encodeFailure(peerLost("ps", "worker 'ps' was lost before all had joined"))};
}

const Fuzzer kRendezvous("rendezvous", feed, seeds);

}  // namespace
}  // namespace treadle::fuzz::rendezvous_fuzz

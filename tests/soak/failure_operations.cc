// Calls that must fail, and how: errors of handlers, wrong names, time limits, cancellations, lost workers.

#include "tests/soak/operations.h"

namespace treadle::soak {
namespace {

using std::chrono::milliseconds;

void thrown(Client& client) {
  const std::string text = "row " + std::to_string(client.number());
  const int to = client.rank();
  const std::string name = client.worker().peer(to).name;
  auto failed = [&](Failure how) { return [&client, to, &text, how] { client.call<&failing>(to, how, text); }; };
  switch (client.below(4)) {
    case 0: {
      auto error = thrownBy<RemoteError>(failed(Failure::kStandard), "a handler that throws");
      expectPart(error.what(), text);
      expectEqual<std::string>(error.type(), "std::out_of_range", "the type that was thrown");
      expectEqual<std::string>(error.worker(), name, "the worker that threw");
      break;
    }
    case 1:
      return expectPart(thrownBy<ArgumentError>(failed(Failure::kArgument), "a handler that throws").what(), text);
    case 2:
      return expectPart(thrownBy<NotFoundError>(failed(Failure::kNotFound), "a handler that throws").what(), text);
    default: expectPart(thrownBy<RemoteError>(failed(Failure::kNoStandard), "a handler that throws").type(), "unknown");
  }
}

// The failure of making it is all that a reference has.
void thrownForReference(Client& client) {
  const std::string text = "row " + std::to_string(client.number());
  RRef<void> nothing = client.worker().remote<&failing>(client.rank(), Failure::kStandard, text);
  auto wait = [&] { client.bounded([&] { nothing.waitUntilReady(); }); };
  expectPart(thrownBy<RemoteError>(wait, "a reference that could not be made").what(), text);
}

void wrongNames(Client& client) {
  const int to = client.rank();
  auto absent = [&] { client.bounded([&] { return client.worker().callNamed<Number>(to, "absent", Number{1}); }); };
  thrownBy<NotFoundError>(absent, "a call of what there is not");
  auto other = [&] { client.bounded([&] { return client.worker().callNamed<Number>(to, "mixed", 1.5); }); };
  thrownBy<StateError>(other, "a call with another signature");
}

// Both ends look at the time: what the function returns when it sees that it is over may be there before the caller has
// looked itself.
void pastTheTimeLimit(Client& client) {
  const int to = client.rank();
  const Duration limit = milliseconds(1 + client.below(20));
  CallProxy caller = client.worker().with({.timeout = limit});
  const TimePoint begin = Clock::now();
  bool task = client.oneIn(2);
  try {
    client.bounded([&] { task ? caller.call<&waitsInTask>(to) : caller.call<&waitsPlainly>(to); });
  } catch (const TimeoutError&) {
    return;
  } catch (const ResourceError& error) {
    return expectNoRoom(error);
  }
  if (task || Clock::now() < begin + limit) throw Wrong("a call that lasts ended well before its time limit");
}

void cancelled(Client& client) {
  const int to = client.rank();
  CallProxy caller = client.worker().with({.timeout = client.timeout()});
  Future<Number> call = client.oneIn(2) ? caller.async<&waitsInTask>(to) : caller.async<&waitsPlainly>(to);
  // Sometimes it has not left yet, sometimes it runs.
  if (client.oneIn(2)) client.wait(client.worker().after(milliseconds(client.below(10))));
  call.cancel();
  thrownBy<CancelledError>([&] { client.wait(call); }, "a call that was cancelled");
}

// Cancelled at about the moment when it is answered: either is right, and nothing else.
void cancelledLate(Client& client) {
  const Number a = client.number();
  Future<Number> call = client.worker().async<&mixed>(client.rank(), a, a);
  if (client.oneIn(2)) client.call<&mixed>(client.rank(), a, a);
  call.cancel();
  try {
    expectEqual(client.wait(call), mix(a, a), "the mix of a call that was cancelled too late");
  } catch (const CancelledError&) {
    return;
  }
}

void cancelledGroup(Client& client) {
  std::vector<Future<Number>> all;
  for (int i = 0; i < 3; ++i) all.push_back(client.worker().async<&waitsInTask>(client.rank()));
  Future<std::vector<Number>> group = whenAll(all);
  group.cancel();
  thrownBy<CancelledError>([&] { client.wait(group); }, "a group that was cancelled");
  for (Future<Number>& one : all) thrownBy<CancelledError>([&] { client.wait(one); }, "a call of a cancelled group");
}

// A worker that is lost stays lost, and is named. A call that waited for its time limit would end by a TimeoutError.
void toTheLost(Client& client) {
  std::optional<int> lost = client.peers().anyLost(client.number());
  if (!lost) return;
  auto call = [&] { client.call<&mixed>(*lost, Number{1}, Number{2}); };
  auto error = thrownBy<PeerLostError>(call, "a call to a worker that is lost");
  expectEqual<std::string>(error.worker(), client.worker().peer(*lost).name, "the worker that was lost");
}

}  // namespace

std::vector<Operation> failureOperations() {
  return {{"thrown", thrown, 5},
          {"thrownForReference", thrownForReference, 2},
          {"wrongNames", wrongNames, 1},
          {"pastTheTimeLimit", pastTheTimeLimit, 2},
          {"cancelled", cancelled, 2},
          {"cancelledLate", cancelledLate, 3},
          {"cancelledGroup", cancelledGroup, 1},
          {"toTheLost", toTheLost, 1}};
}

}  // namespace treadle::soak

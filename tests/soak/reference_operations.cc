// References: made, read, passed on between third workers in every way, and let go at any moment.

#include "tests/soak/operations.h"
#include "tests/soak/shelf.h"

namespace treadle::soak {
namespace {

// A reference to `wanted`, owned by this worker or another.
struct Made {
  RRef<Number> number;
  Number wanted;
};
Made made(Client& client) {
  Number a = client.number();
  if (client.oneIn(3)) return {client.worker().makeRRef(a), a};
  return {client.worker().remote<&mixed>(client.rank(), a, Number{1}), mix(a, 1)};
}

void readBack(Client& client) {
  Made one = made(client);
  RRef<Number> copy = one.number;
  if (client.oneIn(4)) client.bounded([&] { one.number.waitUntilReady(); });
  one.number = {};
  expectEqual(client.read(copy), one.wanted, "a value that was read");
}

// Gone before, while or after it is made.
void dropped(Client& client) {
  std::vector<RRef<Number>> all;
  for (Number left = client.below(8); left > 0; --left) all.push_back(made(client).number);
}

void droppedOnTheWay(Client& client) {
  Made one = made(client);
  Future<Number> later = client.worker().async<&readThrough>(client.rank(), one.number, client.path(3));
  one.number = {};
  expectEqual(client.wait(later), one.wanted, "a value whose reference was dropped on the way");
}

void forwardedReference(Client& client) {
  Made one = made(client);
  expectEqual(client.call<&readThrough>(client.rank(), one.number, client.path(3)), one.wanted, "a forwarded value");
}

// Back from where it was sent, by several workers; what was sent goes first, or last.
void passed(Client& client) {
  Made one = made(client);
  RRef<Number> back = client.call<&passedThrough>(client.rank(), one.number, client.path(3));
  if (client.oneIn(2)) one.number = {};
  expectEqual(client.read(back), one.wanted, "a value of a reference that came back");
}

void fromOthers(Client& client) {
  Number a = client.number();
  RRef<Number> theirs = client.call<&ownedHere>(client.rank(), a);
  expectEqual(client.call<&readOf>(client.rank(), theirs), a, "a value that a handler owns");
}

// The four conversions, with owners that are the caller, the callee and a third worker, as it comes.
void converted(Client& client) {
  Made one = made(client);
  Number b = client.number();
  expectEqual(client.call<&mixed>(client.rank(), one.number, b), mix(one.wanted, b), "the mix of a reference");
  expectEqual(client.call<&readOf>(client.rank(), b), b, "the value that stayed");
  Made other = made(client);
  Future<Number> both = client.worker().async<&mixed>(client.rank(), one.number, other.number);
  other.number = {};
  expectEqual(client.wait(both), mix(one.wanted, other.wanted), "the mix of two references");
}

void ofReference(Client& client) {
  Number a = client.number();
  RRef<RRef<Number>> outer = client.worker().remote<&ownedHere>(client.rank(), a);
  RRef<Number> inner = client.read(outer);
  outer = {};
  expectEqual(client.read(inner), a, "the value of a reference's reference");
}

void bundled(Client& client) {
  const Number salt = client.number();
  Made one = made(client), two = made(client), three = made(client);
  Bundle bundle{one.number, {two.number, one.number}, {{"three", three.number}}, {}};
  if (client.oneIn(2)) bundle.maybe = two.number;
  auto sum = [&](auto f) {
    return Number{2} * f(one.wanted) + Number{bundle.maybe ? 2U : 1U} * f(two.wanted) + f(three.wanted);
  };
  Number before = client.call<&sumOf>(client.rank(), bundle);
  expectEqual(before, sum([](Number x) { return x; }), "the sum of a bundle");
  Bundle answer = client.call<&exchanged>(client.rank(), bundle, salt);
  Number after = client.call<&sumOf>(client.rank(), answer);
  expectEqual(after, sum([salt](Number x) { return mix(x, salt); }), "the sum of a bundle that came back");
}

void tallied(Client& client) {
  Number sum = client.number() % 1000;
  RRef<Tally> tally = client.worker().make<Tally>(client.rank(), sum);
  std::vector<Future<Number>> adding;
  for (Number left = client.below(6); left > 0; --left) {
    const Number more = client.below(1000);
    sum += more;
    if (client.oneIn(2)) {
      adding.push_back(tally.async<&Tally::add>(more));
    } else {
      adding.push_back(client.worker().async<&addThrough>(client.rank(), tally, more, client.path(2)));
    }
  }
  client.wait(whenAll(adding));
  RRef<Number> same = tally(Number{0});
  expectEqual(client.read(same), sum, "what the tally's call gives");
  expectEqual(client.bounded([&] { return tally.call<&Tally::sum>(); }), sum, "the tally");
}

void shelved(Client& client) {
  Made one = made(client);
  client.call<&keep>(client.rank(), one.number, one.wanted);
}

// Reads one from this worker's shelf, or gives it to another's.
void fromTheShelf(Client& client) {
  std::optional<Shelf::Kept> kept = Shelf::ofProcess().any();
  if (!kept) return;
  switch (client.below(3)) {
    case 0: return expectEqual(client.read(kept->number), kept->wanted, "a value from the shelf");
    case 1: client.call<&keep>(client.rank(), kept->number, kept->wanted); break;
    default:
      expectEqual(client.call<&readThrough>(client.rank(), kept->number, client.path(2)), kept->wanted,
                  "a value from the shelf, read elsewhere");
  }
}

}  // namespace

std::vector<Operation> referenceOperations() {
  return {{"readBack", readBack, 8},
          {"dropped", dropped, 5},
          {"droppedOnTheWay", droppedOnTheWay, 6},
          {"forwarded", forwardedReference, 6},
          {"passed", passed, 6},
          {"fromOthers", fromOthers, 4},
          {"converted", converted, 6},
          {"ofReference", ofReference, 3},
          {"bundled", bundled, 2},
          {"tallied", tallied, 4},
          {"shelved", shelved, 5},
          {"fromTheShelf", fromTheShelf, 8}};
}

}  // namespace treadle::soak

// Calls whose results are known, in all the forms that a call has.

#include "tests/soak/operations.h"

namespace treadle::soak {
namespace {

void single(Client& client) {
  Number a = client.number(), b = client.number();
  expectEqual(client.call<&mixed>(client.rank(), a, b), mix(a, b), "the mix");
}

void toItself(Client& client) {
  Number a = client.number();
  expectEqual(client.call<&mixed>(client.worker().self().rank, a, a), mix(a, a), "the own mix");
}

// Many at once, waited for in one of three ways.
void batch(Client& client) {
  const Number first = client.number(), count = 1 + client.below(24);
  std::vector<Future<Number>> futures;
  for (Number i = 0; i < count; ++i) futures.push_back(client.worker().async<&mixed>(client.rank(), first, i));
  Number wanted = 0, sum = 0;
  for (Number i = 0; i < count; ++i) wanted += mix(first, i);
  switch (client.below(3)) {
    case 0:
      for (Number one : client.wait(whenAll(futures))) sum += one;
      break;
    case 1:
      while (!futures.empty()) {
        size_t ready = client.wait(whenAny(futures));
        sum += futures[ready].wait();
        futures.erase(futures.begin() + static_cast<ptrdiff_t>(ready));
      }
      break;
    default:
      for (Future<Number>& one : futures) sum += client.wait(one);
  }
  expectEqual(sum, wanted, "the sum of a batch");
}

// Structs, containers, text.
void parcel(Client& client) {
  Number seed = client.number();
  expectEqual(client.call<&turned>(client.rank(), Parcel::of(seed)), Parcel::of(mix(seed, 1)), "a turned parcel");
}

void longText(Client& client) {
  const Number length = client.below(200'000);
  expectEqual(client.call<&lengthOf>(client.rank(), std::string(length, 'x')), length, "the length of a text");
}

void byName(Client& client) {
  Number a = client.number();
  Number got = client.bounded([&] { return client.worker().callNamed<Number>(client.rank(), "mixed", a, a); });
  expectEqual(got, mix(a, a), "the mix by name");
}

void lazily(Client& client) {
  Number a = client.number();
  auto later = client.worker().with({.lazy = true}).async<&mixed>(client.rank(), a, a);
  expectEqual(client.wait(later), mix(a, a), "the lazy mix");
}

void chained(Client& client) {
  Number a = client.number();
  Future<Number> later = client.worker().async<&mixed>(client.rank(), a, a);
  Future<Number> chain = later.then([a](Number got) { return mix(got, a); });
  expectEqual(client.wait(chain), mix(mix(a, a), a), "what follows a mix");
}

void byLocalWork(Client& client) {
  Number a = client.number();
  Future<Number> local = client.worker().spawn([](Number x) { return mix(x, 1); }, a);
  expectEqual(client.wait(local), mix(a, 1), "the spawned mix");
}

void later(Client& client) {
  Number a = client.number();
  expectEqual(client.call<&mixedLater>(client.rank(), a, a), mix(a, a), "the later mix");
}

void nestedCalls(Client& client) {
  Path path = client.path(client.oneIn(50) ? 40 : 5);
  const Number a = client.number(), length = path.size();
  expectEqual(client.call<&nested>(client.rank(), a, path), a + length, "the count of nested calls");
}

void coroutine(Client& client) {
  Path path = client.path(5);
  const Number a = client.number();
  Number wanted = 0;
  for (int rank : path) wanted += mix(a, static_cast<Number>(rank));
  expectEqual(client.call<&gathered>(client.rank(), a, path), wanted, "what a coroutine gathered");
}

}  // namespace

std::vector<Operation> callOperations() {
  return {{"single", single, 30}, {"toItself", toItself, 3},       {"batch", batch, 12},
          {"parcel", parcel, 6},  {"longText", longText, 2},       {"byName", byName, 2},
          {"lazily", lazily, 2},  {"chained", chained, 4},         {"byLocalWork", byLocalWork, 2},
          {"later", later, 4},    {"nestedCalls", nestedCalls, 4}, {"coroutine", coroutine, 4}};
}

}  // namespace treadle::soak

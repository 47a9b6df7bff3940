// Large byte buffers, over whichever ways there are between two workers.

#include "tests/soak/operations.h"
#include "treadle/core/memory/block_pool.h"

namespace treadle::soak {
namespace {

// From what rides inline to what is worth offering or several lanes; small ones far more often.
size_t size(Client& client) {
  const size_t largest[] = {200, 20'000, 20'000, 70'000, 70'000, 300'000, 300'000, client.largestBlob()};
  return client.below(largest[client.below(std::size(largest))]);
}

void thereAndBack(Client& client) {
  const Number seed = client.number(), next = client.oneIn(2) ? seed : mix(seed, 1);
  const size_t sizeBytes = size(client);
  Blob back = client.call<&exchangedBlob>(client.rank(), Blob::of(seed, sizeBytes), seed, next);
  expectEqual(Number{back.buffer.sizeBytes}, Number{sizeBytes}, "the size of a blob");
  expectBlob(back, next);
}

// Arguments are captured when `async` returns.
void severalAtOnce(Client& client) {
  const Number seed = client.number();
  std::vector<Future<Blob>> all;
  for (Number i = 0; i < 4; ++i) {
    Blob blob = Blob::of(seed + i, size(client));
    CallProxy caller = client.worker().with({.priority = static_cast<int>(client.below(3))});
    all.push_back(caller.async<&exchangedBlob>(client.rank(), blob, seed + i, seed + i));
    if (client.oneIn(8)) all.back().cancel();
  }
  for (Number i = 0; i < all.size(); ++i) try {
      expectBlob(client.wait(all[i]), seed + i);
    } catch (const CancelledError&) {
      continue;
    }
}

void read(Client& client) {
  const Number seed = client.number();
  RRef<Blob> there = client.worker().remote<&freshBlob>(client.rank(), seed, uint64_t{size(client)});
  expectBlob(client.read(there), seed);
}

// From its owner straight to the callee, who keeps what it gets.
void forwarded(Client& client) {
  const Number seed = client.number();
  const uint64_t sizeBytes = size(client);
  RRef<Blob> blob = client.oneIn(2) ? client.worker().makeRRef(Blob::of(seed, sizeBytes))
                                    : client.worker().remote<&freshBlob>(client.rank(), seed, sizeBytes);
  client.call<&expectBlob>(client.rank(), blob, seed);
}

// In memory that this process shares with its peers, as that of treadle::emptyShared: a peer on this host may read the
// bytes where they lie. The memory is used again as soon as the call has ended and nobody holds it any more.
void lent(Client& client) {
  const Number seed = client.number();
  const size_t sizeBytes = size(client);
  const auto blob = [&] { return Blob::in(memory::allocateFrom(memory::BlockPool::ofProcess(), sizeBytes), seed); };
  if (client.oneIn(2)) {
    expectBlob(client.call<&exchangedBlob>(client.rank(), blob(), seed, seed), seed);
  } else {
    Future<Blob> later = client.worker().async<&exchangedBlob>(client.rank(), blob(), seed, mix(seed, 1));
    expectBlob(client.wait(later), mix(seed, 1));
  }
}

// Given up while its bytes are on the way, or before there was room for them.
void givenUp(Client& client) {
  const Number seed = client.number();
  CallProxy caller = client.worker().with({.timeout = std::chrono::microseconds(client.below(5000))});
  Future<Blob> call;
  try {
    call = caller.async<&exchangedBlob>(client.rank(), Blob::of(seed, size(client)), seed, seed);
    expectBlob(client.wait(call), seed);
  } catch (const TimeoutError&) {
    return;
  } catch (const ResourceError& error) {
    expectNoRoom(error);
  }
}

}  // namespace

std::vector<Operation> blobOperations() {
  return {{"blobThereAndBack", thereAndBack, 3},
          {"blobsAtOnce", severalAtOnce, 1},
          {"blobRead", read, 2},
          {"blobForwarded", forwarded, 2},
          {"blobLent", lent, 2},
          {"blobGivenUp", givenUp, 1}};
}

}  // namespace treadle::soak

#pragma once
// What the workers of a soak call on each other. Every result follows from the arguments alone (or is counted, where a
// handler is told to wait for ever), so that callers know what must come. Handlers: any thread, several at a time.

#include <atomic>

#include "tests/soak/blob.h"
#include "treadle/core.h"

namespace treadle::soak {

// How much later than promised something may end or be noticed: the threads of a loaded machine wait for a core.
inline constexpr Duration kLateness = std::chrono::seconds(30);

// Something came out other than it must.
class Wrong : public std::logic_error {
  using std::logic_error::logic_error;
};

template <class T>
void expectEqual(const T& got, const T& wanted, const std::string& what) {
  if (!(got == wanted)) throw Wrong(what + " is not what it must be");
}
inline void expectEqual(Number got, Number wanted, const std::string& what) {
  if (got != wanted) throw Wrong(what + " is " + std::to_string(got) + ", not " + std::to_string(wanted));
}

// Ranks that a reference or a call has still to go through.
using Path = std::vector<int>;

struct Parcel {
  Number number = 0;
  double weight = 0;
  std::string text;
  std::vector<int32_t> parts;
  std::map<std::string, Number> named;
  std::optional<std::string> note;
  std::tuple<bool, uint8_t> rest;

  bool operator==(const Parcel&) const = default;
  static Parcel of(Number seed);
};
TREADLE_FIELDS(Parcel, number, weight, text, parts, named, note, rest)

// References in a struct and in containers.
struct Bundle {
  RRef<Number> one;
  std::vector<RRef<Number>> more;
  std::map<std::string, RRef<Number>> named;
  std::optional<RRef<Number>> maybe;
};
TREADLE_FIELDS(Bundle, one, more, named, maybe)

enum class Failure : uint8_t { kStandard, kArgument, kNotFound, kNoStandard };
struct OfNoStandard {};  // what may be thrown though it is no std::exception

// Lives where it was made; a copy of it is what travels.
class Tally {
 public:
  explicit Tally(Number start) : sum_(start) {}
  Tally(Tally&& other) noexcept : sum_(other.sum_.load()) {}
  Number add(Number more) { return sum_ += more; }
  Number operator()(Number more) { return add(more); }
  Number sum() const { return sum_; }

 private:
  std::atomic<Number> sum_;
};

Number mixed(Number a, Number b);
Parcel turned(const Parcel& parcel);  // the parcel of its number's mix
Number lengthOf(const std::string& text);

// Checks that the blob is of `seed`, and answers with the one of `next`, or with itself when they are the same.
Blob exchangedBlob(Blob blob, Number seed, Number next);
Blob freshBlob(Number seed, uint64_t sizeBytes);
void expectBlob(const Blob& blob, Number seed);

void failing(Failure how, const std::string& text);

Number readOf(const RRef<Number>& number);
RRef<Number> ownedHere(CallContext& call, Number number);
// On through all of `path`; the last one reads it, or hands it back.
Number readThrough(CallContext& call, const RRef<Number>& number, Path path);
RRef<Number> passedThrough(CallContext& call, RRef<Number> number, Path path);
Number addThrough(CallContext& call, const RRef<Tally>& tally, Number more, Path path);
Number sumOf(const Bundle& bundle);
// A bundle of new values, each the mix of the old one and `salt`, that this worker owns.
Bundle exchanged(CallContext& call, const Bundle& bundle, Number salt);

// Adds one for each worker on the way: handlers that wait for handlers.
Number nested(CallContext& call, Number number, Path path);
// The mixes of `number` by all in `path` at once, and a pause, added up: a coroutine.
Task<Number> gathered(CallContext& call, Number number, Path path);
// The same as `mixed` from a thread of the pool, a promise kept meanwhile.
Future<Number> mixedLater(CallContext& call, Number a, Number b);

// Ends when its caller gives up, and counts whether it did: a coroutine and a plain function.
Task<Number> waitsInTask(CallContext& call);
Number waitsPlainly(CallContext& call);

// How many of those began and ended here, and how many saw their caller give up too late.
struct WaitCounts {
  std::atomic<uint64_t> begun = 0, ended = 0, late = 0;
};
WaitCounts& waitCounts();

// Puts a reference on the shelf of this worker (shelf.h).
void keep(const RRef<Number>& number, Number wanted);

Functions handlers();

}  // namespace treadle::soak

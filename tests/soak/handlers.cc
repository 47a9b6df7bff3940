#include "tests/soak/handlers.h"

#include <algorithm>
#include <thread>

#include "tests/soak/ensemble.h"
#include "tests/soak/shelf.h"

namespace treadle::soak {
namespace {

// How long what waits for its caller to give up looks out for that at most.
constexpr Duration kLookout = std::chrono::seconds(120);

int takeFirst(Path& path) {
  int first = path.front();
  path.erase(path.begin());
  return first;
}

// Counts a wait, however it ends.
class CountedWait {
 public:
  explicit CountedWait(TimePoint deadline) : deadline_(deadline) { ++waitCounts().begun; }
  ~CountedWait() {
    if (Clock::now() > std::min(deadline_, begin_ + kLookout) + kLateness) ++waitCounts().late;
    ++waitCounts().ended;
  }
  CountedWait(const CountedWait&) = delete;
  CountedWait& operator=(const CountedWait&) = delete;

 private:
  const TimePoint begin_ = Clock::now(), deadline_;
};

}  // namespace

Parcel Parcel::of(Number seed) {
  Parcel parcel;
  parcel.number = seed;
  parcel.weight = static_cast<double>(seed % 1'000'003) / 7;
  parcel.text = std::string(seed % 300, static_cast<char>('a' + seed % 26));
  for (Number i = 0; i < seed % 9; ++i) parcel.parts.push_back(static_cast<int32_t>(mix(seed, i)));
  for (Number i = 0; i < seed % 4; ++i) parcel.named[std::to_string(mix(seed, i))] = i;
  if (seed % 2 == 0) parcel.note = std::to_string(seed);
  parcel.rest = {seed % 3 == 0, static_cast<uint8_t>(seed)};
  return parcel;
}

Number mixed(Number a, Number b) { return mix(a, b); }

Parcel turned(const Parcel& parcel) {
  expectEqual(parcel, Parcel::of(parcel.number), "a parcel that came");
  return Parcel::of(mix(parcel.number, 1));
}

Number lengthOf(const std::string& text) { return text.size(); }

void expectBlob(const Blob& blob, Number seed) {
  if (size_t at = blob.firstWrong(seed); at != blob.buffer.sizeBytes)
    throw Wrong("a blob of " + std::to_string(blob.buffer.sizeBytes) + " bytes is wrong from byte " +
                std::to_string(at) + " on");
}

Blob exchangedBlob(Blob blob, Number seed, Number next) {
  expectBlob(blob, seed);
  return seed == next ? std::move(blob) : Blob::of(next, blob.buffer.sizeBytes);
}

Blob freshBlob(Number seed, uint64_t sizeBytes) { return Blob::of(seed, sizeBytes); }

void failing(Failure how, const std::string& text) {
  if (how == Failure::kStandard) throw std::out_of_range(text);
  if (how == Failure::kArgument) throw ArgumentError(invalidArgument(text));
  if (how == Failure::kNotFound) throw NotFoundError(notFound(text));
  throw OfNoStandard();
}

Number readOf(const RRef<Number>& number) { return number.toHere(); }

RRef<Number> ownedHere(CallContext& call, Number number) { return call.worker().makeRRef(number); }

Number readThrough(CallContext& call, const RRef<Number>& number, Path path) {
  if (path.empty()) return number.toHere();
  int next = takeFirst(path);
  return call.worker().call<&readThrough>(next, number, path);
}

RRef<Number> passedThrough(CallContext& call, RRef<Number> number, Path path) {
  if (path.empty()) return number;
  int next = takeFirst(path);
  return call.worker().call<&passedThrough>(next, number, path);
}

Number addThrough(CallContext& call, const RRef<Tally>& tally, Number more, Path path) {
  if (path.empty()) return tally.call<&Tally::add>(more);
  int next = takeFirst(path);
  return call.worker().call<&addThrough>(next, tally, more, path);
}

Number sumOf(const Bundle& bundle) {
  std::vector<Future<Number>> all = {bundle.one.toHereAsync()};
  for (const RRef<Number>& one : bundle.more) all.push_back(one.toHereAsync());
  for (const auto& [name, one] : bundle.named) all.push_back(one.toHereAsync());
  if (bundle.maybe) all.push_back(bundle.maybe->toHereAsync());
  Number sum = 0;
  for (Number one : whenAll(std::move(all)).wait()) sum += one;
  return sum;
}

Bundle exchanged(CallContext& call, const Bundle& bundle, Number salt) {
  auto renewed = [&](const RRef<Number>& old) { return call.worker().makeRRef(mix(old.toHere(), salt)); };
  Bundle answer{renewed(bundle.one), {}, {}, {}};
  for (const RRef<Number>& one : bundle.more) answer.more.push_back(renewed(one));
  for (const auto& [name, one] : bundle.named) answer.named.emplace(name, renewed(one));
  if (bundle.maybe) answer.maybe = renewed(*bundle.maybe);
  return answer;
}

Number nested(CallContext& call, Number number, Path path) {
  if (path.empty()) return number;
  int next = takeFirst(path);
  return 1 + call.worker().call<&nested>(next, number, path);
}

Task<Number> gathered(CallContext& call, Number number, Path path) {
  std::vector<Future<Number>> parts;
  for (int rank : path) parts.push_back(call.worker().async<&mixed>(rank, number, static_cast<Number>(rank)));
  co_await call.worker().after(std::chrono::milliseconds(number % 3));
  Number sum = 0;
  for (Future<Number>& part : parts) sum += co_await part;
  co_return sum;
}

Future<Number> mixedLater(CallContext& call, Number a, Number b) {
  return call.worker().spawn([](Number x, Number y) { return mix(x, y); }, a, b);
}

WaitCounts& waitCounts() {
  static WaitCounts counts;
  return counts;
}

Task<Number> waitsInTask(CallContext& call) {
  CountedWait counted(call.deadline());
  co_await call.worker().after(kLookout);
  co_return 0;
}

Number waitsPlainly(CallContext& call) {
  CountedWait counted(call.deadline());
  // Nothing wakes a plain function whose caller gives up: it has to look.
  treadle::blocking([&] {
    for (TimePoint end = deadlineAfter(kLookout); !call.cancelled() && Clock::now() < end;)
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  });
  return 0;
}

void keep(const RRef<Number>& number, Number wanted) { Shelf::ofProcess().put({number, wanted}); }

Functions handlers() {
  Functions all;
  all.add<&mixed>("mixed").add<&turned>("turned").add<&lengthOf>("lengthOf");
  all.add<&exchangedBlob>("exchangedBlob").add<&freshBlob>("freshBlob").add<&expectBlob>("expectBlob");
  all.add<&failing>("failing").add<&readOf>("readOf").add<&ownedHere>("ownedHere");
  all.add<&readThrough>("readThrough").add<&passedThrough>("passedThrough").add<&addThrough>("addThrough");
  all.add<&sumOf>("sumOf").add<&exchanged>("exchanged").add<&nested>("nested").add<&gathered>("gathered");
  all.add<&mixedLater>("mixedLater").add<&waitsInTask>("waitsInTask").add<&waitsPlainly>("waitsPlainly");
  all.add<&keep>("keep").add<&takePart>("takePart");
  all.addType<Tally, Number>("Tally").add<&Tally::add>("Tally.add").add<&Tally::operator()>("Tally.call");
  all.add<&Tally::sum>("Tally.sum");
  return all;
}

}  // namespace treadle::soak

#include "treadle/cli/bench.h"

#include <array>
#include <cstring>
#include <fstream>

#include "treadle/cli/blob.h"
#include "treadle/cli/gathering.h"
#include "treadle/cli/machine.h"
#include "treadle/cli/numbers.h"
#include "treadle/cli/raw_partner.h"

namespace treadle::cli {
namespace {

using namespace std::chrono_literals;
using Progress = std::function<void(const std::string&)>;

constexpr Duration kAboutInAll = 10s;
constexpr int kFewest = 3;  // repetitions, when their number follows from the time
constexpr int kOther = 1;   // the rank that is called
// Of the time limit: what is begun by then has time to end.
constexpr double kMeasuringShare = 0.8;
// What rank 1 gives rank 0 beyond the time limit, to make and to compare values: rank 0's life is what ends the wait.
constexpr Duration kForTheRest = 60s;
constexpr const char* kLate = "ended early: the time was up; --timeout gives more";

void nothing() {}
Blob sameAgain(Blob blob) { return blob; }

template <class Body>
double timeOf(Body body) {
  TimePoint begin = Clock::now();
  body();
  return std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
}

class Bench {
 public:
  Bench(Worker& worker, const BenchOptions& options, TimePoint deadline, const Progress& progress)
      : worker_(worker),
        options_(options),
        deadline_(deadline),
        lateFrom_(deadline - std::chrono::duration_cast<Duration>(options.timeout * (1 - kMeasuringShare))),
        progress_(progress) {
    call(1);  // settles how memory is shared
    overUnix_ = worker.channelsTo(kOther).unixSockets.inUse;
  }

  Figures run();

 private:
  void emptyCall(Figure& figure);
  void callsInFlight(Figure& figure);
  void largeValue(Figure& figure, int megabytes);
  void call(int times);
  void upToTheLimit(Figure& figure, const std::function<void(Figure&)>& take);
  void repeat(Figure& figure, const std::function<void(bool counts)>& once);
  RawPartner partner(size_t messageBytes) const {
    return valueOrThrow(RawPartner::start(overUnix_, messageBytes, left()));
  }
  std::string rawName() const { return overUnix_ ? "unix" : "tcp"; }
  bool late() const { return Clock::now() >= lateFrom_; }
  Duration left() const { return std::max<Duration>(deadline_ - Clock::now(), 1ms); }
  CallProxy limited() const { return worker_.with({.timeout = left()}); }
  void describe(Figures& figures) const;

  Worker& worker_;
  const BenchOptions& options_;
  const TimePoint deadline_, lateFrom_;
  const Progress& progress_;
  bool overUnix_ = false;
};

void Bench::call(int times) {
  for (int i = 0; i < times; ++i) limited().call<&nothing>(kOther);
}

// What was begun in time and is cut off by the time limit ends the figure and not the command.
void Bench::upToTheLimit(Figure& figure, const std::function<void(Figure&)>& take) {
  try {
    take(figure);
  } catch (const Error& error) {
    if (error.code() != Code::kDeadlineExceeded || Clock::now() < deadline_) throw;
    figure.note = kLate;
  }
}

// Once to warm up; then as often as was asked for, or for this figure's share of the time.
void Bench::repeat(Figure& figure, const std::function<void(bool counts)>& once) {
  const auto rows = static_cast<int>(options_.megabytes.size()) + 2;
  const TimePoint end = deadlineAfter(kAboutInAll / rows);
  progress_(figure.name);
  once(false);
  for (int i = 0; !late(); ++i) {
    bool enough = options_.repetitions > 0 ? i >= options_.repetitions : i >= kFewest && Clock::now() >= end;
    if (enough) return;
    if (options_.repetitions > 0)
      progress_(figure.name + ", " + std::to_string(i + 1) + " of " + std::to_string(options_.repetitions));
    once(true);
  }
  figure.note = kLate;
}

void Bench::emptyCall(Figure& figure) {
  constexpr int kBlock = 100;
  constexpr size_t kRawBytes = 64;
  figure = {"empty call", {}, {{"64 bytes over " + rawName(), {}}}, false, ""};
  RawPartner raw = partner(kRawBytes);
  std::array<std::byte, kRawBytes> message{}, answer{};
  repeat(figure, [&](bool counts) {
    for (int i = 0; i < kBlock; ++i) {
      double time = timeOf([&] { call(1); });
      if (counts) figure.ours.values.push_back(time);
    }
    for (int i = 0; i < kBlock; ++i) {
      double time = timeOf([&] { throwIfError(raw.roundTrip(message, answer)); });
      if (counts) figure.limits[0].values.push_back(time);
    }
  });
}

void Bench::callsInFlight(Figure& figure) {
  constexpr int kCalls = 2000;
  figure = {"calls in flight", {}, {}, true, ""};
  repeat(figure, [&](bool counts) {
    double time = timeOf([&] {
      std::vector<Future<void>> answers;
      answers.reserve(kCalls);
      for (int i = 0; i < kCalls; ++i) answers.push_back(limited().async<&nothing>(kOther));
      for (Future<void>& answer : answers) answer.wait();
    });
    if (counts) figure.ours.values.push_back(time / kCalls);
  });
}

// What is free without making others give way; nothing when the system does not tell.
std::optional<double> availableMegabytes() {
  std::ifstream info("/proc/meminfo");
  for (std::string name; info >> name;)
    if (double kilobytes = 0; name == "MemAvailable:" && info >> kilobytes) return kilobytes / 1024;
  return std::nullopt;
}

void Bench::largeValue(Figure& figure, int megabytes) {
  constexpr int kCopies = 6;  // in both processes and in the raw partner
  figure = {std::to_string(megabytes) + " MiB and back", {}, {{"memcpy", {}}, {rawName() + " stream", {}}}, false, ""};
  if (auto free = availableMegabytes(); free && *free < kCopies * megabytes) {
    figure.limits.clear();
    figure.note = "left out: it needs " + std::to_string(kCopies * megabytes) + " MiB of memory, and " +
                  fixed(*free, 0) + " are free";
    return;
  }
  if (late()) {
    figure.note = kLate;
    return;
  }
  const size_t bytes = static_cast<size_t>(megabytes) << 20;
  Buffer from = allocateBuffer(bytes), to = allocateBuffer(bytes);
  for (size_t i = 0; i < bytes; ++i) from.data[i] = static_cast<std::byte>(i ^ (i >> 8));
  RawPartner raw = partner(bytes);
  const Blob sent{Buffer::borrow(from.data, bytes)};
  repeat(figure, [&](bool counts) {
    Blob back;
    double ours = timeOf([&] { back = limited().call<&sameAgain>(kOther, sent); });
    if (!counts && (back.buffer.sizeBytes != bytes || std::memcmp(back.buffer.data, from.data, bytes) != 0))
      raise(dataLoss("other bytes came back than were sent"));
    double copy = timeOf([&] { std::memcpy(to.data, from.data, bytes); });
    double stream = timeOf([&] { throwIfError(raw.roundTrip(from.bytes(), to.mutableBytes())); });
    if (!counts) return;
    figure.ours.values.push_back(ours);
    figure.limits[0].values.push_back(copy);
    figure.limits[1].values.push_back(stream);
  });
}

void Bench::describe(Figures& figures) const {
  PeerChannels use = worker_.channelsTo(kOther);
  std::string large = use.sharedMemory.inUse  ? "shared memory"
                      : use.crossMemory.inUse ? "cross-memory attach"
                      : use.lanes.inUse       ? "lanes"
                                              : rawName();
  std::string built;
#ifndef NDEBUG
  built = " (not a release build: ours is slower than it could be)";
#endif
  figures.machine = {{"processor", processorText() + ", " + std::to_string(usableCores()) + " cores"},
                     {"kernel", kernelText()},
                     {"channels", "messages over " + rawName() + ", large values over " + large},
                     {"treadle", std::string("version ") + TREADLE_VERSION + built}};
}

Figures Bench::run() {
  Figures figures;
  double idle = idleCores();
  auto add = [&](const std::function<void(Figure&)>& take) {
    Figure figure;
    upToTheLimit(figure, take);
    figures.figures.push_back(std::move(figure));
  };
  add([this](Figure& figure) { emptyCall(figure); });
  add([this](Figure& figure) { callsInFlight(figure); });
  for (int megabytes : options_.megabytes) add([&](Figure& figure) { largeValue(figure, megabytes); });
  describe(figures);
  figures.machine.emplace_back("idle before", idle < 0 ? "not known" : fixed(idle, 1) + " cores");
  return figures;
}

}  // namespace

Figures measure(const Launch& launch, const BenchOptions& options, const Progress& progress) {
  if (launch.workers() < 2)
    raise(failedPrecondition("it takes two workers: start it alone, or with `treadle run -n 2 -- treadle bench`"));
  TimePoint deadline = deadlineAfter(options.timeout);
  Functions functions;
  functions.add<&nothing>("treadle.bench.nothing").add<&sameAgain>("treadle.bench.sameAgain");
  Gathering gathering("bench", launch, std::move(functions), options.timeout, options.channels);
  Figures figures;
  if (launch.rank == 0)
    figures = Bench(gathering.worker(), options, deadline, progress).run();
  else
    gathering.waitForEnd(options.timeout + kForTheRest);
  gathering.end();
  return figures;
}

}  // namespace treadle::cli

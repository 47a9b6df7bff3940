// One worker of a soak. It joins its job as any program does, by the environment, and then does what it is told, line
// by line, on standard input; each line is answered by one on standard output that begins with the same word.
//
//   soak_program NAME [--threads N] [--timeout SECONDS] [--heartbeat-timeout SECONDS] [--join-timeout SECONDS]
//                     [--listen ADDRESS] [--announce ADDRESS] [--no-blobs] [--no-groups] [--losses] [--faults]
//                     [--only OPERATION] [--lateness SECONDS] [--largest-kb N] [--memory-mb N] [--in-flight-mb N]
//
//   run SEED CALLS     runs operations until it has sent so many calls; `ran` comes when it is done
//   stop               ends that early
//   endanger NAME      that worker may be lost from now on ("*": any)
//   avoid NAME         that worker is called no more
//   barrier            meets all others
//   clear              lets the references go that it keeps
//   settle SECONDS     waits until nothing is held or under way here, at most so long; then says what is left
//   lost               which workers it has lost
//   depart SECONDS     leaves an open job, within so long
//   shutdown, leave    ends the job with the others, or without a word to them
//
// Meanwhile it says once a second how far it is ("at ..."), and what went wrong ("failure ..."): also when its metrics
// exceed the limits of its own options (--memory-mb: JoinOptions::memoryLimitBytes, --in-flight-mb: maxInFlightBytes).

#include <malloc.h>

#include <cstdio>
#include <iostream>
#include <sstream>

#include "tests/soak/shelf.h"
#include "tests/soak/traffic.h"
#include "tests/soak/usage.h"

namespace treadle::soak {
namespace {

struct Options {
  JoinOptions join;
  TrafficOptions traffic;
};

Duration secondsIn(const std::string& text) {
  return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(std::stod(text)));
}

Options parse(int argc, char** argv) {
  Options options;
  if (argc < 2) throw std::runtime_error("usage: soak_program NAME [options]; they stand in its source");
  options.join.name = argv[1];
  options.join.functions = handlers();
  options.join.rpcTimeout = options.traffic.timeout;
  for (int i = 2; i < argc; ++i) {
    const std::string option = argv[i];
    auto value = [&] { return i + 1 < argc ? std::string(argv[++i]) : throw std::runtime_error(option + " of what?"); };
    if (option == "--threads") {
      options.traffic.threads = std::stoi(value());
    } else if (option == "--timeout") {
      options.join.rpcTimeout = options.traffic.timeout = secondsIn(value());
    } else if (option == "--heartbeat-timeout") {
      options.join.heartbeatTimeout = secondsIn(value());
    } else if (option == "--join-timeout") {
      options.join.joinTimeout = secondsIn(value());
    } else if (option == "--listen") {
      options.join.listenAddress = value();
    } else if (option == "--announce") {
      options.join.announceAddress = value();
    } else if (option == "--no-blobs") {
      options.traffic.blobs = false;
    } else if (option == "--no-groups") {
      options.traffic.groups = false;
    } else if (option == "--only") {
      options.traffic.only = value();
    } else if (option == "--lateness") {
      options.traffic.lateness = secondsIn(value());
    } else if (option == "--largest-kb") {
      options.traffic.largestBlob = std::stoul(value()) * 1000;
    } else if (option == "--memory-mb") {
      options.join.memoryLimitBytes = std::stoul(value()) << 20;
    } else if (option == "--in-flight-mb") {
      options.join.maxInFlightBytes = std::stoul(value()) << 20;
    } else if (option == "--losses") {
      options.traffic.fair.losses = true;
    } else if (option == "--faults") {
      options.traffic.fair = {true, true};
    } else {
      throw std::runtime_error("unknown option " + option);
    }
  }
  return options;
}

void say(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

// It comes in, or fails, within its time limit.
std::shared_ptr<Worker> join(const JoinOptions& options) {
  const TimePoint begin = Clock::now();
  auto checkTime = [&] {
    const Duration took = Clock::now() - begin;
    if (took > options.joinTimeout + kLateness) say("failure join: it took " + toText(took));
  };
  try {
    std::shared_ptr<Worker> worker = Worker::join(options);
    checkTime();
    return worker;
  } catch (const Error&) {
    checkTime();
    throw;
  }
}

class Session {
 public:
  explicit Session(const Options& options)
      : worker_(join(options.join)), limits_(options.join), traffic_(*worker_, peers_, options.traffic) {
    peers_.meet(worker_->peers());
    say("joined " + worker_->self().name + " rank=" + std::to_string(worker_->self().rank));
    reporter_ = std::thread([this] { report(); });
  }
  ~Session() {
    {
      MutexLock lock(mutex_);
      ending_ = true;
      wake_.notifyAll();
    }
    reporter_.join();
  }

  // False when the worker is to end.
  bool obey(const std::string& line) {
    std::istringstream words(line);
    std::string what;
    words >> what;
    if (what == "leave") return false;
    const auto found = kCommands.find(what);
    if (found == kCommands.end()) throw std::runtime_error("cannot obey '" + line + "'");
    (this->*found->second)(words);
    return what != "shutdown" && what != "depart";
  }

 private:
  using Command = void (Session::*)(std::istream& words);
  static const std::map<std::string, Command> kCommands;

  void run(std::istream& words) {
    Number seed = 0, calls = 0;
    words >> seed >> calls;
    traffic_.start(seed, calls);
    MutexLock lock(mutex_);
    awaited_ = true;
  }
  void stop(std::istream&) { traffic_.stop(); }
  void endanger(std::istream& words) {
    std::string name;
    words >> name;
    peers_.meet(worker_->peers());
    peers_.mayLose(name);
    say("endanger");
  }
  void avoid(std::istream& words) {
    std::string name;
    words >> name;
    peers_.meet(worker_->peers());
    peers_.avoid(name);
    say("avoid");
  }
  void depart(std::istream& words) {
    std::string seconds;
    words >> seconds;
    traffic_.stop();
    Shelf::ofProcess().clear();
    worker_->leave({.timeout = secondsIn(seconds)});
    say("depart");
  }
  void barrier(std::istream&) {
    worker_->barrier();
    say("barrier");
  }
  void clear(std::istream&) {
    Shelf::ofProcess().clear();
    say("clear");
  }
  void settle(std::istream& words) {
    std::string seconds;
    words >> seconds;
    say("settle " + whatIsLeft(secondsIn(seconds)));
  }
  void tellLosses(std::istream&) { say("lost " + losses()); }
  void shutdown(std::istream&) {
    worker_->shutdown();
    say("shutdown");
  }

  // What is left, once nothing is or the time is over.
  std::string whatIsLeft(Duration limit) {
    const TimePoint deadline = deadlineAfter(limit);
    Held held = Held::by(*worker_);
    // Counters tell nobody when they change.
    for (; !held.nothing() && Clock::now() < deadline; held = Held::by(*worker_))
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    trimMemory();
    ::malloc_trim(0);
    return held.toText() + " " + usage();
  }

  // By asking for the ways to each: what is lost says so.
  std::string losses() {
    peers_.meet(worker_->peers());
    for (const WorkerInfo& peer : worker_->peers()) try {
        worker_->channelsTo(peer);
      } catch (const PeerLostError& error) {
        peers_.lost(error.worker());
      }
    return peers_.namesOfLost();
  }

  void report() {
    MutexLock lock(mutex_);
    while (!ending_) {
      // Short, so that the end of a run is told soon; a line comes once a second.
      wake_.waitUntil(lock, deadlineAfter(std::chrono::milliseconds(20)));
      checkLimits();
      if (awaited_ && !traffic_.running()) {
        awaited_ = false;
        say("ran " + progress());
      } else if (Clock::now() > told_ + std::chrono::seconds(1)) {
        told_ = Clock::now();
        peers_.meet(worker_->peers());
        say("at " + progress());
      }
    }
  }

  // What the worker counts of its memory stays within its options, at any time.
  void checkLimits() {
    const Metrics now = worker_->metrics();
    const size_t inFlight = limits_.maxInFlightBytes * worker_->peers().size();
    const size_t blocks = now.memory.usedBytes + now.memory.freeBytes + now.memory.lostBytes;
    checkLimit("requests that are not answered (Metrics::unansweredBytes)", now.unansweredBytes, inFlight);
    checkLimit("requests of peers (Metrics::bytesToAnswer)", now.bytesToAnswer, inFlight);
    checkLimit("blocks for tensors (Metrics::memory)", blocks, now.memoryLimitBytes);
    mostBlocks_ = std::max(mostBlocks_, blocks);
    mostUnanswered_ = std::max(mostUnanswered_, now.unansweredBytes);
  }
  void checkLimit(const char* what, size_t bytes, size_t limit) {
    if (bytes > limit && !std::exchange(overLimit_, true))
      say(std::string("failure memory: ") + what + " take " + std::to_string(bytes) + " bytes, and the limit is " +
          std::to_string(limit));
  }

  std::string progress() {
    const TrafficCounts counts = traffic_.counts();
    const Traffic::Oldest oldest = traffic_.oldest();
    auto milliseconds = [](Duration time) {
      return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time).count());
    };
    return "calls=" + std::to_string(worker_->metrics().callsSent) +
           " operations=" + std::to_string(counts.operations) + " errors=" + std::to_string(counts.fairErrors) +
           " failures=" + std::to_string(counts.failures) + " slowest_ms=" + milliseconds(counts.slowest) +
           " blocks_kb=" + std::to_string(mostBlocks_ / 1024) +
           " unanswered_kb=" + std::to_string(mostUnanswered_ / 1024) + " oldest_ms=" + milliseconds(oldest.age) +
           " oldest=" + oldest.name;
  }

  const std::shared_ptr<Worker> worker_;
  const JoinOptions limits_;
  Peers peers_;
  Traffic traffic_;
  size_t mostBlocks_ = 0, mostUnanswered_ = 0;  // of the reporter, as is the next
  bool overLimit_ = false;
  std::thread reporter_;
  Mutex mutex_;
  CondVar wake_;
  bool ending_ TREADLE_GUARDED_BY(mutex_) = false;
  bool awaited_ TREADLE_GUARDED_BY(mutex_) = false;  // the end of a run is to be told
  TimePoint told_ TREADLE_GUARDED_BY(mutex_) = {};
};

const std::map<std::string, Session::Command> Session::kCommands = {
    {"run", &Session::run},         {"stop", &Session::stop},         {"endanger", &Session::endanger},
    {"barrier", &Session::barrier}, {"clear", &Session::clear},       {"settle", &Session::settle},
    {"lost", &Session::tellLosses}, {"shutdown", &Session::shutdown}, {"avoid", &Session::avoid},
    {"depart", &Session::depart}};

void run(const Options& options) {
  Session session(options);
  for (std::string line; std::getline(std::cin, line);)
    if (!session.obey(line)) return;
}

}  // namespace
}  // namespace treadle::soak

int main(int argc, char** argv) {
  try {
    treadle::soak::run(treadle::soak::parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "soak_program: %s\n", error.what());
    return 1;
  }
}

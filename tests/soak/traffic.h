#pragma once
// The threads of one worker that run operations, drawn by seed, until the worker has sent so many calls or is told to
// stop; what became of them; and how long the longest has been under way. `start` and `stop` on one thread, the rest on
// any.

#include <atomic>
#include <memory>
#include <thread>

#include "tests/soak/operations.h"

namespace treadle::soak {

// What is no failure.
struct Fairness {
  bool losses = false;  // PeerLostError of a worker that may be lost, or told by one that may be
  bool faults = false;  // TimeoutError and NotFoundError too, while anybody may be lost
};

struct TrafficOptions {
  int threads = 4;
  Duration timeout = std::chrono::seconds(30);  // the worker's rpcTimeout
  Duration lateness = kLateness;                // how long after its time limit a call may end
  size_t largestBlob = 3'000'000;               // bytes
  bool blobs = true, groups = true;
  std::string only = {};  // the name of an operation; empty: all
  Fairness fair = {};
};

struct TrafficCounts {
  uint64_t operations = 0, fairErrors = 0, failures = 0;
  Duration slowest = {};
};

class Traffic {
 public:
  Traffic(Worker& worker, Peers& peers, TrafficOptions options);
  ~Traffic() { stop(); }

  // Begins to run operations, until this worker has sent `calls` more.
  void start(Number seed, uint64_t calls);
  void stop();
  bool running() const { return running_ > 0; }
  TrafficCounts counts() const;

  // The operation that has been under way for longest, and for how long.
  struct Oldest {
    const char* name = "-";
    Duration age = {};
  };
  Oldest oldest() const;

 private:
  // What one thread does at the moment.
  struct Lane {
    std::atomic<const char*> name = nullptr;
    std::atomic<Duration::rep> since = 0;
    std::thread thread;
  };

  void run(int thread, Number seed, uint64_t until);
  void runOne(Lane& lane, Client& client, const Operation& operation);
  bool isFair(const Error& error) const;
  void noteLoss(const std::string& name);
  void note(const char* operation, const std::string& what);

  Worker& worker_;
  Peers& peers_;
  const TrafficOptions options_;
  std::vector<Operation> operations_;         // each as often as its weight
  std::vector<std::unique_ptr<Lane>> lanes_;  // the same from the start, as `oldest` looks at them from another thread
  std::atomic<bool> stopping_ = false;
  std::atomic<int> running_ = 0;
  std::atomic<uint64_t> done_ = 0, fairErrors_ = 0, failures_ = 0;
  std::atomic<Duration::rep> slowest_ = 0;
};

}  // namespace treadle::soak

#include "tests/soak/traffic.h"

#include <algorithm>
#include <cstdio>

namespace treadle::soak {
namespace {

// More of the same says nothing new.
constexpr uint64_t kFailuresTold = 20;

}  // namespace

Traffic::Traffic(Worker& worker, Peers& peers, TrafficOptions options)
    : worker_(worker), peers_(peers), options_(std::move(options)) {
  std::vector<std::vector<Operation>> kinds = {callOperations(), failureOperations(), referenceOperations()};
  if (options_.blobs) kinds.push_back(blobOperations());
  if (options_.groups) kinds.push_back(groupOperations());
  for (const auto& kind : kinds)
    for (const Operation& one : kind)
      if (options_.only.empty() || options_.only == one.name)
        operations_.insert(operations_.end(), static_cast<size_t>(one.weight), one);
  for (int i = 0; i < options_.threads; ++i) lanes_.push_back(std::make_unique<Lane>());
  if (operations_.empty()) raise(invalidArgument("there is no operation '" + options_.only + "'"));
}

void Traffic::start(Number seed, uint64_t calls) {
  stop();
  stopping_ = false;
  running_ = options_.threads;
  const uint64_t until = worker_.metrics().callsSent + calls;
  for (int i = 0; i < options_.threads; ++i) {
    const Number own = mix(mix(seed, static_cast<Number>(worker_.self().rank)), static_cast<Number>(i));
    lanes_[static_cast<size_t>(i)]->thread = std::thread([this, i, own, until] { run(i, own, until); });
  }
}

void Traffic::stop() {
  stopping_ = true;
  for (auto& lane : lanes_)
    if (lane->thread.joinable()) lane->thread.join();
}

TrafficCounts Traffic::counts() const { return {done_, fairErrors_, failures_, Duration(slowest_)}; }

Traffic::Oldest Traffic::oldest() const {
  Oldest oldest;
  const Duration::rep now = Clock::now().time_since_epoch().count();
  for (const auto& lane : lanes_) {
    const char* name = lane->name;
    if (Duration age(now - lane->since); name != nullptr && age > oldest.age) oldest = {name, age};
  }
  return oldest;
}

void Traffic::run(int thread, Number seed, uint64_t until) {
  Lane& lane = *lanes_[static_cast<size_t>(thread)];
  Client client(worker_, thread, peers_, {options_.timeout, options_.lateness, options_.largestBlob}, seed);
  while (!stopping_ && worker_.metrics().callsSent < until)
    runOne(lane, client, operations_[client.below(operations_.size())]);
  lane.name = nullptr;
  --running_;
}

void Traffic::runOne(Lane& lane, Client& client, const Operation& operation) {
  const TimePoint begin = Clock::now();
  lane.since = begin.time_since_epoch().count();
  lane.name = operation.name;
  try {
    operation.run(client);
  } catch (const Error& error) {
    if (isFair(error)) {
      ++fairErrors_;
      if (error.code() == Code::kPeerLost) noteLoss(error.worker());
    } else {
      note(operation.name, demangled(typeid(error).name()) + " of '" + error.worker() + "': " + error.what());
    }
  } catch (const std::exception& error) {
    note(operation.name, error.what());
  }
  ++done_;
  const Duration::rep took = (Clock::now() - begin).count();
  for (Duration::rep before = slowest_; before < took && !slowest_.compare_exchange_weak(before, took);) continue;
}

// Which two workers a loss was between is known by whose it is and whom it came through. Not so when a time limit
// passes because some worker further on waits for a link that was harmed, or when who passed a reference on is lost to
// its owner. But for what is not there, all name whom they concern.
bool Traffic::isFair(const Error& error) const {
  const bool late = error.code() == Code::kDeadlineExceeded, gone = error.code() == Code::kNotFound;
  if (late && error.worker().empty()) return false;
  if (late || gone) return options_.fair.faults && peers_.anyMayBeLost();
  if (error.code() != Code::kPeerLost || !options_.fair.losses) return false;
  // Who came later does not know the names of those that had gone.
  if (error.worker().starts_with("rank ") && peers_.anyMayBeLost()) return true;
  const std::vector<std::string>& trail = error.trail();
  return peers_.mayBeLost(error.worker()) || peers_.mayBeLost(worker_.self().name) ||
         std::any_of(trail.begin(), trail.end(), [this](const std::string& name) { return peers_.mayBeLost(name); });
}

// One that others have lost may still be there for this worker.
void Traffic::noteLoss(const std::string& name) {
  try {
    worker_.channelsTo(name);
  } catch (const PeerLostError&) {
    peers_.lost(name);
  } catch (const NotFoundError&) {
    peers_.lost(name);  // gone from an open job, or before this worker came
  }
}

void Traffic::note(const char* operation, const std::string& what) {
  if (++failures_ > kFailuresTold) return;
  std::printf("failure %s: %s\n", operation, what.c_str());
  std::fflush(stdout);
}

}  // namespace treadle::soak

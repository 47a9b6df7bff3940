// Calls without tensors: one at a time, many in flight, and beside large tensors.
#include <ATen/ops/rand.h>

#include <array>
#include <atomic>
#include <thread>

#include "bench/limits/echo.h"
#include "bench/ours/cases.h"

namespace bench {
namespace {

using treadle::Future;
using treadle::Worker;

constexpr int kBlock = 200;  // calls, then as many raw round trips
constexpr int kCallWarmUp = 500;

// In blocks, so that a slow moment of the machine meets both.
std::vector<Series> emptyCall(Worker& worker, int repetitions, Echo::Way way, const char* limitName) {
  Echo echo(way, 64);
  std::array<char, 64> message{};
  auto call = [&] { worker.call<&nothing>(kServer); };
  auto roundTrip = [&] { echo.roundTrip(message.data()); };
  for (int i = 0; i < kCallWarmUp; ++i) call(), roundTrip();
  std::vector<Series> both = {{"", "us", {}}, {limitName, "us", {}}};
  for (int block = 0; block < repetitions; ++block) {
    for (int i = 0; i < kBlock; ++i) both[0].values.push_back(timeOf(call));
    for (int i = 0; i < kBlock; ++i) both[1].values.push_back(timeOf(roundTrip));
  }
  return both;
}

std::vector<Series> callEmpty(Worker& worker, int repetitions) {
  return emptyCall(worker, repetitions, Echo::Way::kUnix, "raw");
}
std::vector<Series> callEmptyTcp(Worker& worker, int repetitions) {
  return emptyCall(worker, repetitions, Echo::Way::kTcp, "raw_tcp");
}

// Time per call with many in flight: one client thread. The limit is a raw round trip of its own.
std::vector<Series> asyncCall(Worker& worker, int repetitions) {
  constexpr int kCalls = 20'000;
  Echo echo(Echo::Way::kUnix, 64);
  std::array<char, 64> message{};
  std::vector<Series> both = alternated(
      "raw", 1, repetitions, [] {},
      [&] {
        std::vector<Future<void>> futures;
        futures.reserve(kCalls);
        for (int i = 0; i < kCalls; ++i) futures.push_back(worker.async<&nothing>(kServer));
        for (Future<void>& future : futures) future.wait();
      },
      [&] {
        for (int i = 0; i < kBlock; ++i) echo.roundTrip(message.data());
      });
  for (double& time : both[0].values) time /= kCalls;
  for (double& time : both[1].values) time /= kBlock;
  return both;
}

// Times of calls one after the other, for so long.
void callFor(Worker& worker, std::chrono::milliseconds length, std::vector<double>& times) {
  auto end = std::chrono::steady_clock::now() + length;
  while (std::chrono::steady_clock::now() < end) times.push_back(timeOf([&] { worker.call<&nothing>(kServer); }));
}

// Empty calls while another thread sends 400 MB there and back all the time, and with nothing else, in turn.
std::vector<Series> smallBehindLarge(Worker& worker, int repetitions) {
  at::Tensor large = at::rand({400 * kFloatsPerMegabyte});
  worker.call<&identity>(kServer, large);
  std::vector<Series> both = {{"", "us", {}}, {"quiet", "us", {}}};
  for (int block = 0; block < few(repetitions); ++block) {
    callFor(worker, std::chrono::milliseconds(250), both[1].values);
    std::atomic<bool> stop = false;
    std::thread flow([&] {
      while (!stop) worker.call<&identity>(kServer, large);
    });
    callFor(worker, std::chrono::milliseconds(750), both[0].values);
    stop = true;
    flow.join();
  }
  return both;
}

}  // namespace

void addCallCases(Cases& cases) {
  cases["call_empty"] = &callEmpty;
  cases["call_empty_tcp"] = &callEmptyTcp;
  cases["async_call"] = &asyncCall;
  cases["small_behind_large"] = &smallBehindLarge;
}

}  // namespace bench

// One machine of the bed that measures the summation service (bench/netbed.py): joined to all others over TCP, it sums
// in rounds, and prints when each round began and ended, in microseconds of the clock that all namespaces of a host
// share.

#include <netinet/in.h>
#include <sys/socket.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <numeric>
#include <span>
#include <thread>

#include "bench/netbed/rounds.h"
#include "treadle/cli/known_models.h"
#include "treadle/core/io/listener.h"
#include "treadle/core/io/socket.h"
#include "treadle/core/summation/pump.h"

namespace {

using treadle::summation::Bandwidths;
using treadle::summation::Declaration;
using treadle::summation::Machine;
using treadle::summation::Pump;
using treadle::summation::PumpPeer;

constexpr auto kPatience = std::chrono::seconds(60);

struct Options {
  size_t self = 0, workers = 0, servers = 0;
  std::vector<uint64_t> bytes;
  std::string model;
  bool areOnServers = false;  // all sums
  int backwardMs = 0;         // 0: all tensors are offered at once
  bool isFirstCome = false;
  int rounds = 1;
  std::vector<std::string> addresses;  // of all machines
  std::vector<double> bandwidths;      // theirs
};

// Each machine dials the workers before it, which know it by its first byte.
std::vector<PumpPeer> meet(const Options& options) {
  using namespace treadle;
  std::vector<PumpPeer> peers;
  const TimePoint deadline = deadlineAfter(kPatience);
  const auto addressOf = [&](size_t machine) { return valueOrThrow(io::Address::parse(options.addresses[machine])); };
  io::Fd listener = valueOrThrow(io::listenOn(addressOf(options.self)));
  for (size_t other = 0; other < std::min(options.self, options.workers); ++other) {
    Result<io::Fd> connected = io::connectTo(addressOf(other), deadline);
    while (!connected.ok() && Clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      connected = io::connectTo(addressOf(other), deadline);
    }
    const std::byte self{static_cast<unsigned char>(options.self)};
    io::Fd socket = valueOrThrow(std::move(connected));
    throwIfError(io::writeAll(socket.get(), {&self, 1}, deadline));
    peers.push_back({other, std::move(socket)});
  }
  const size_t others = options.self < options.workers ? options.addresses.size() - 1 : options.workers;
  while (peers.size() < others) {
    if (!io::waitFor(listener.get(), POLLIN, deadline)) raise(deadlineExceeded("not all machines have come"));
    io::Fd socket = valueOrThrow(io::acceptFrom(listener.get()));
    if (!socket.valid()) continue;
    std::byte other{};
    throwIfError(io::readAll(socket.get(), {&other, 1}, deadline));
    peers.push_back({std::to_integer<size_t>(other), std::move(socket)});
  }
  return peers;
}

// Of each tensor: those of the model in proportion, with as many bytes together as are given.
std::vector<uint64_t> sizesOf(const Options& options) {
  if (options.model.empty()) return options.bytes;
  std::vector<uint64_t> sizes = treadle::valueOrThrow(treadle::cli::parametersOf(options.model));
  const auto sum = [](const std::vector<uint64_t>& all) {
    return std::accumulate(all.begin(), all.end(), uint64_t{0});
  };
  const double factor = static_cast<double>(sum(options.bytes)) / static_cast<double>(sum(sizes));
  for (uint64_t& size : sizes) size = std::max<uint64_t>(4, static_cast<uint64_t>(static_cast<double>(size) * factor));
  return sizes;
}

Declaration declared(const Options& options) {
  std::vector<Declaration::Tensor> tensors = {{treadle::group::DataType::kInt32, 4}};  // a barrier
  std::vector<uint64_t> sizes = sizesOf(options);
  if (options.isFirstCome) std::reverse(sizes.begin(), sizes.end());  // those that are declared first go first
  for (const uint64_t bytes : sizes) tensors.push_back({treadle::group::DataType::kInt32, bytes / 4 * 4});
  if (options.bandwidths.size() != options.workers + options.servers)
    treadle::raise(treadle::invalidArgument("not one bandwidth for each machine"));
  const auto servers = options.bandwidths.begin() + static_cast<std::ptrdiff_t>(options.workers);
  const Bandwidths given{{options.bandwidths.begin(), servers}, {servers, options.bandwidths.end()}};
  return valueOrThrow(
      Declaration::of(std::move(tensors), options.areOnServers ? serverShares(given) : bestShares(given)));
}

// What is summed outlives the pump.
using Data = std::vector<std::vector<int32_t>>;

using Sum = std::function<treadle::Future<void>(size_t tensor)>;

struct Times {
  long begin, end;
};

Times allAtOnce(const Sum& sum, size_t tensors) {
  const long begin = treadle::netbed::microseconds();
  std::vector<treadle::Future<void>> sums;
  for (size_t tensor = 1; tensor < tensors; ++tensor) sums.push_back(sum(tensor));
  for (auto& one : sums) one.wait(kPatience);
  return {begin, treadle::netbed::microseconds()};
}

// In the order of a backward pass, which takes so long: from its end, when the first layer is offered, until the sum of
// that layer is there.
Times firstLayer(const Sum& sum, size_t tensors, const Options& options) {
  const auto begin = std::chrono::steady_clock::now();
  const std::chrono::duration<double, std::milli> pass(options.backwardMs);
  std::vector<treadle::Future<void>> sums;
  for (size_t i = 1; i < tensors; ++i) {
    std::this_thread::sleep_until(begin + pass * (static_cast<double>(i) / static_cast<double>(tensors - 1)));
    sums.push_back(sum(options.isFirstCome ? i : tensors - i));
  }
  Times times{treadle::netbed::microseconds(), 0};
  sums.back().wait(kPatience);
  times.end = treadle::netbed::microseconds();
  for (auto& one : sums) one.wait(kPatience);
  return times;
}

void work(Pump& pump, const Declaration& declaration, const Options& options, Data& data) {
  for (const Declaration::Tensor& tensor : declaration.tensors) data.emplace_back(tensor.bytes / 4);
  const auto sum = [&](size_t tensor) { return pump.sum(tensor, std::as_writable_bytes(std::span(data[tensor]))); };
  const auto all = static_cast<int32_t>(options.workers * (options.workers + 1) / 2);
  for (int round = 0; round < options.rounds; ++round) {
    for (auto& tensor : data)
      std::fill(tensor.begin(), tensor.end(), static_cast<int32_t>(options.self + 1) * (round + 1));
    sum(0).wait(kPatience);
    const Times times = options.backwardMs > 0 ? firstLayer(sum, data.size(), options) : allAtOnce(sum, data.size());
    sum(0).wait(kPatience);  // nobody looks through its sums while others are being timed
    for (size_t tensor = 1; tensor < data.size(); ++tensor) treadle::netbed::check(data[tensor], all * (round + 1));
    treadle::netbed::print(round, times.begin, times.end);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  CLI::App app("A machine of the bed that measures the summation service; started by bench/netbed.py");
  Options options;
  app.add_option("--self", options.self)->required();
  app.add_option("--workers", options.workers)->required();
  app.add_option("--servers", options.servers)->required();
  app.add_option("--bytes", options.bytes, "of each tensor")->delimiter(',')->required();
  app.add_option("--model", options.model, "its tensors, scaled to --bytes");
  app.add_flag("--on-servers", options.areOnServers, "the servers sum all, as plain parameter servers");
  app.add_option("--backward-ms", options.backwardMs,
                 "offers the model's tensors as a backward pass of this length does");
  app.add_flag("--first-come", options.isFirstCome, "with --backward-ms: tensors that are offered first go first");
  app.add_option("--rounds", options.rounds);
  app.add_option("--addresses", options.addresses, "of all machines")->delimiter(',')->required();
  app.add_option("--bandwidths", options.bandwidths, "theirs, in any unit")->delimiter(',')->required();
  CLI11_PARSE(app, argc, argv);
  std::vector<PumpPeer> peers = meet(options);
  const Declaration declaration = declared(options);
  Data data;
  Pump pump(declaration, options.self, options.addresses, std::move(peers));
  if (options.self < options.workers) {
    work(pump, declaration, options, data);
    pump.leave();
  }
  pump.ended().wait();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "node: %s\n", error.what());
  return 1;
}

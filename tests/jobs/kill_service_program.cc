// A machine of a job with summation servers that may kill or stop itself at a named moment:
// kill_service_program [asynchronous|one-bit] [MOMENT [stop]].
//
// Workers sum tensors in several rounds, check the sums, and leave; or they give as many changes of running sums, and
// leave when these have the changes of all workers. One-bit sums are of data that this loses nothing of. Where a
// service cannot be made because of a lost server, it is made again without it. A program whose job fails says why on
// its last line, and ends with 1; with 3 where a sum is wrong.
//
// Moments: a step of the program ("joined", "making", "made", "second-round", "left"), or "KIND.INDEX.PLACE" of a frame
// that this process sends (summation/frame.h), as "addend.0.half": before the first one of its kind is sent, after half
// of its bytes, or after all of them. Frames are seen where they go to a socket; so the job must have no TLS.

#include <dlfcn.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "treadle/core.h"
#include "treadle/core/summation/frame.h"

namespace treadle::kill_service {
namespace {

using summation::FrameKind;

std::string killsAt;  // the moment; empty: never
int killsBy = SIGKILL;
bool isAsynchronous = false, isOneBit = false;

[[noreturn]] void die() {
  ::kill(::getpid(), killsBy);
  for (;;) ::pause();
}

void step(const char* name) {
  if (killsAt == name) die();
}

// ---- frames

constexpr std::array<const char*, 9> kKindNames = {"none",  "announce", "grant",   "addend", "sum",
                                                   "leave", "have",     "release", "version"};
std::array<std::atomic<int>, kKindNames.size()> framesOfKind{};
std::atomic<int> lastFd = -1;       // of a frame after which the process dies
std::atomic<size_t> bytesLeft = 0;  // of it

size_t sizeOf(const msghdr& message) {
  size_t bytes = 0;
  for (size_t i = 0; i < message.msg_iovlen; ++i) bytes += message.msg_iov[i].iov_len;
  return bytes;
}

// The frame that begins with the message, if one does.
std::optional<summation::Frame> beginOfFrame(const msghdr& message) {
  summation::FrameHeader header;
  if (message.msg_iovlen == 0 || message.msg_iov[0].iov_len != header.size()) return {};
  std::memcpy(header.data(), message.msg_iov[0].iov_base, header.size());
  const Result<summation::Frame> frame = summation::parseFrame(header);
  if (!frame.ok() || sizeOf(message) != header.size() + frame->sizeBytes) return {};
  return *frame;
}

ssize_t really(int fd, const msghdr* message, int flags) {
  static const auto next = reinterpret_cast<ssize_t (*)(int, const msghdr*, int)>(::dlsym(RTLD_NEXT, "sendmsg"));
  return next(fd, message, flags);
}

ssize_t sendUntil(int fd, const msghdr* message, int flags) {
  const std::optional<summation::Frame> frame = beginOfFrame(*message);
  if (frame) {
    const auto kind = static_cast<size_t>(frame->kind);
    const std::string moment = std::string(kKindNames[kind]) + "." + std::to_string(framesOfKind[kind]);
    if (killsAt == moment + ".before") die();
    if (killsAt == moment + ".half") {
      std::vector<std::byte> bytes;
      for (size_t i = 0; i < message->msg_iovlen; ++i) {
        const auto* part = static_cast<const std::byte*>(message->msg_iov[i].iov_base);
        bytes.insert(bytes.end(), part, part + message->msg_iov[i].iov_len);
      }
      (void)::send(fd, bytes.data(), bytes.size() / 2, flags);
      die();
    }
    if (killsAt == moment + ".after") {
      lastFd = fd;
      bytesLeft = sizeOf(*message);
    }
  }
  const ssize_t sent = really(fd, message, flags);
  if (frame && sent > 0) ++framesOfKind[static_cast<size_t>(frame->kind)];
  if (sent > 0 && lastFd == fd && (bytesLeft -= std::min<size_t>(bytesLeft, static_cast<size_t>(sent))) == 0) die();
  return sent;
}

// ---- the job

constexpr int kRounds = 4;
const std::vector<SummationTensor> kTensors = {{"front", group::DataType::kFloat32, 7},
                                               {"middle", group::DataType::kFloat32, 300'000},
                                               {"large", group::DataType::kFloat32, 1'500'000}};

// Sums are exact where workers' changes come in any order, and as one bit; else they depend on the order of the
// workers.
float element(size_t i, size_t worker, int round) {
  if (isOneBit) return (i % 2 == 0 ? 1.0F : -1.0F) * static_cast<float>(worker + 1 + static_cast<size_t>(round));
  const auto exact = static_cast<float>((i % 1000) * (worker + 1) + static_cast<size_t>(round));
  if (isAsynchronous) return exact;
  return exact / 3 * (worker == 1 ? -1000.0F : 1.0F);
}

// To the bit.
bool sumsAreRight(SummationService& service, size_t worker, size_t workers, int round) {
  std::vector<std::vector<float>> data;
  for (const SummationTensor& tensor : kTensors) {
    data.emplace_back(tensor.elements);
    for (size_t i = 0; i < tensor.elements; ++i) data.back()[i] = element(i, worker, round);
  }
  std::vector<Future<void>> sums;
  for (size_t tensor = kTensors.size(); tensor-- > 0;)
    sums.push_back(service.sum(kTensors[tensor].name, std::span(data[tensor])));
  for (Future<void>& sum : sums) sum.wait();
  for (const std::vector<float>& one : data) {
    for (size_t i = 0; i < one.size(); ++i) {
      float right = 0;
      for (size_t other = 0; other < workers; ++other) right += element(i, other, round);
      if (one[i] != right) return false;
    }
  }
  return true;
}

// The tensor's running sum once it has all changes of all workers; those of the first round are the first values.
std::vector<float> lastOf(const SummationTensor& tensor, size_t workers) {
  std::vector<float> last(tensor.elements);
  for (size_t i = 0; i < last.size(); ++i)
    for (size_t worker = 0; worker < workers; ++worker)
      for (int round = 0; round < kRounds; ++round) last[i] += element(i, worker, round);
  return last;
}

void giveChange(SummationService& service, size_t worker, int round) {
  std::vector<std::vector<float>> data;
  for (const SummationTensor& tensor : kTensors) {
    data.emplace_back(tensor.elements);
    for (size_t i = 0; i < tensor.elements; ++i) data.back()[i] = element(i, worker, round);
  }
  std::vector<Future<void>> sums;
  for (size_t tensor = 0; tensor < kTensors.size(); ++tensor)
    sums.push_back(service.sum(kTensors[tensor].name, std::span(data[tensor])));
  for (Future<void>& sum : sums) sum.wait();
}

// Does not end where a change is lost, or added twice.
void waitForAllChanges(SummationService& service, size_t workers) {
  for (const SummationTensor& tensor : kTensors) {
    const std::vector<float> last = lastOf(tensor, workers);
    std::vector<float> now(tensor.elements);
    while (now != last) {
      now.assign(tensor.elements, 0);
      service.sum(tensor.name, std::span(now)).wait();
    }
  }
}

std::vector<std::string> namesOf(const std::vector<WorkerInfo>& workers) {
  std::vector<std::string> names;
  for (const WorkerInfo& one : workers) names.push_back(one.name);
  return names;
}

SummationService makeService(Worker& worker) {
  SummationOptions options{
      .workers = namesOf(worker.peers()), .servers = namesOf(worker.servers()), .asynchronous = isAsynchronous};
  if (isOneBit) options.compression = Compression::oneBit();
  for (;;) {
    try {
      return SummationService::make(worker, options, kTensors);
    } catch (const PeerLostError& error) {
      if (std::erase(options.servers, error.worker()) == 0) throw;
    }
  }
}

int work(Worker& worker) {
  step("making");
  SummationService service = makeService(worker);
  step("made");
  const auto self = static_cast<size_t>(worker.self().rank);
  for (int round = 0; round < kRounds; ++round) {
    if (round == 1) step("second-round");
    if (isAsynchronous) {
      giveChange(service, self, round);
      continue;
    }
    if (sumsAreRight(service, self, worker.peers().size(), round)) continue;
    std::fputs("a sum is wrong\n", stderr);
    return 3;
  }
  if (isAsynchronous) waitForAllChanges(service, worker.peers().size());
  service.leave().wait();
  step("left");
  std::puts("all sums are right");
  return 0;
}

int run() {
  try {
    JoinOptions options;
    options.allowPlaintext = true;
    options.heartbeatTimeout = std::chrono::seconds(3);
    const auto worker = Worker::join(options);
    step("joined");
    const std::vector<WorkerInfo> servers = worker->servers();
    const bool serves = std::ranges::find(servers, worker->self().rank, &WorkerInfo::rank) != servers.end();
    const int code = serves ? 0 : work(*worker);
    worker->shutdown({.timeout = kNoTimeout});
    return code;
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace treadle::kill_service

// All code of this process calls this one.
extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  return treadle::kill_service::sendUntil(fd, message, flags);
}

int main(int argc, char** argv) {
  for (const std::string_view word : std::span(argv, static_cast<size_t>(argc)).subspan(1)) {
    if (word == "asynchronous") {
      treadle::kill_service::isAsynchronous = true;
    } else if (word == "one-bit") {
      treadle::kill_service::isOneBit = true;
    } else if (word == "stop") {
      treadle::kill_service::killsBy = SIGSTOP;
    } else {
      treadle::kill_service::killsAt = word;
    }
  }
  return treadle::kill_service::run();
}

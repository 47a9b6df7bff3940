#include "treadle/cli/job.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>

#include "treadle/core/cluster/status_socket.h"

namespace treadle::cli {
namespace {

using namespace std::chrono_literals;

// Between SIGTERM and SIGKILL: enough to flush a file, too short to be noticed.
constexpr Duration kTermToKill = 1s;

// A worker that gives up may have seen the cause before the launcher, which sees that end within this time.
constexpr Duration kCauseDelay = 1s;

// Messages that are read at a time: more than a socket holds, so that all of a worker that ended are read, and no
// worker keeps the launcher busy. (With the usual size of the buffers; what a worker says beyond it changes no more
// than whose end is named.)
constexpr int kMessagesAtOnce = 1'000;

constexpr const char* kThisProgram = "/proc/self/exe";

struct StatusSocket {
  io::Fd ours, theirs;
  std::string text;  // for cluster::kStatusVariable
};

// Messages, so that a name needs no framing, and a socket rather than a pipe, so that writing to a launcher
// that is gone raises no SIGPIPE.
Result<StatusSocket> makeStatusSocket() {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    return io::errnoStatus(Code::kResourceExhausted, "no socket can be made for a worker", errno);
  StatusSocket made{io::Fd(ends[0]), io::Fd(ends[1]), {}};
  struct stat info{};
  (void)::fstat(made.theirs.get(), &info);
  made.text = std::to_string(made.theirs.get()) + ":" + std::to_string(info.st_ino);
  return made;
}

}  // namespace

Job::~Job() {
  disarm();
  if (giveUpTimer_) reactor_.cancel(*giveUpTimer_);
  for (auto& worker : workers_) {
    reactor_.remove(worker->process.endFd());
    reactor_.remove(worker->status.get());
  }
}

Status Job::start(uint16_t masterPort, const JobKey& jobKey) {
  master_ = masterAt(masterPort);
  for (int rank = 0; rank < processes(); ++rank) {
    Status status = startWorker(rank, masterPort, jobKey);
    if (status.ok()) continue;
    killAll();
    return status.withContext("rank " + std::to_string(rank) + " cannot be started");
  }
  return {};
}

Status Job::startWorker(int rank, uint16_t masterPort, const JobKey& jobKey) {
  Result<StatusSocket> status = makeStatusSocket();
  if (!status.ok()) return std::move(status).status();
  WorkerPlace place{rank,        processes(),  options_.servers,         masterPort,
                    jobKey.text, status->text, console_.outIsTerminal(), console_.columnsFor(rank)};
  const bool serves = rank >= options_.workers;
  Result<io::Process> process = io::Process::start({serves ? kThisProgram : options_.program,
                                                    serves ? std::vector<std::string>{"server"} : options_.arguments,
                                                    environmentOf(place),
                                                    {status->theirs.get(), jobKey.file.get()}});
  if (!process.ok()) return std::move(process).status();

  workers_.push_back(std::make_unique<Worker>(Worker{std::move(*process), {}, std::move(status->ours)}));
  ++left_;
  Worker& worker = *workers_.back();
  worker.record.rank = rank;
  worker.record.isServer = serves;
  worker.record.pid = worker.process.pid();
  // The ends are watched by descriptors and not by SIGCHLD: the reactor hands descriptors out in the order in
  // which they became ready, so that of two ends between two looks the earlier one is told first.
  auto onMessage = std::make_shared<OnEvents>([this, &worker] { takeMessages(worker); });
  auto onEnd = std::make_shared<OnEvents>([this, &worker] { this->onEnd(worker); });
  TREADLE_RETURN_IF_ERROR(reactor_.add(worker.status.get(), EPOLLIN, std::move(onMessage)));
  TREADLE_RETURN_IF_ERROR(reactor_.add(worker.process.endFd(), EPOLLIN, std::move(onEnd)));
  TREADLE_RETURN_IF_ERROR(relay_.add(rank, Stream::kOut, std::move(worker.process.standardOutput())));
  return relay_.add(rank, Stream::kErr, std::move(worker.process.standardError()));
}

void Job::takeMessages(Worker& worker) {
  // One byte more than a name may have tells a name that is too long.
  std::array<char, cluster::kMaxNameLength + 1> bytes;
  for (int i = 0; i < kMessagesAtOnce; ++i) {
    ssize_t size = ::recv(worker.status.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (size > 0) {
      takeMessage(worker.record, {bytes.data(), static_cast<size_t>(size)});
      continue;
    }
    if (size == 0 || errno != EAGAIN) reactor_.remove(worker.status.get());
    return;
  }
}

bool Job::workersAreLeft() const {
  return std::any_of(workers_.begin(), workers_.end(),
                     [](const auto& one) { return !one->record.end && !one->record.isServer; });
}

// The last word counts: a program may catch that it has to give up, and join again or fail by itself.
void Job::takeMessage(WorkerRecord& record, std::string_view message) {
  std::string name = cluster::nameFromMessage(message);
  const bool failed = cluster::tellsFailure(message), gaveUp = cluster::tellsGivingUp(message);
  if (failed && !record.toldFailureAt) record.toldFailureAt = Clock::now();
  if (failed || gaveUp || !name.empty()) record.gaveUp = gaveUp;
  if (name.empty()) return;
  record.name = name;
  record.toldFailureAt.reset();
}

// Servers that still join hear of the last worker's end in any case. Otherwise ends that the launcher brought about are
// no news. When a worker gave up and no end is seen that could be the cause, the others would wait for that worker
// itself in vain.
void Job::noteEnd(const WorkerRecord& ended) {
  if (reported_) return;
  if (!workersAreLeft()) return reportFirstEnd(ended);
  if (ended.sentSignal != 0) return;
  if (!ended.gaveUp) return reportFirstEnd(ended);
  if (giveUpTimer_) return;
  giveUpTimer_ = reactor_.at(deadlineAfter(kCauseDelay), [this, &ended] {
    giveUpTimer_.reset();
    if (!reported_) reportFirstEnd(ended);
  });
}

// Workers that still join would wait for it in vain; the others do not listen. The report goes to rank 0 first, which
// then does not take a worker that gives up over this for the first that was lost.
void Job::reportFirstEnd(const WorkerRecord& ended) {
  reported_ = true;
  for (auto& worker : workers_) {
    if (worker->record.end) continue;
    std::string message =
        cluster::encodeFirstEnd({worker->record.rank, processes(), master_, ended.rank, ended.name, endOf(ended)});
    (void)::send(worker->status.get(), message.data(), message.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

void Job::onChildrenChanged() {
  for (auto& worker : workers_) {
    std::optional<io::ProcessStop> change = worker->process.takeStop();
    if (!change) continue;
    WorkerRecord& record = worker->record;
    if (change->stopped && !record.stop)
      console_.notice("treadle run: " + identify(record) + " was stopped by " + io::signalName(change->number));
    if (!change->stopped && record.stop) console_.notice("treadle run: " + identify(record) + " goes on");
    if (change->stopped && !record.stop) record.stop = {Clock::now(), change->number};
    if (!change->stopped) record.stop.reset();
  }
  reconsider();
}

void Job::onEnd(Worker& worker) {
  onChildrenChanged();  // a stop that came before this end has to be known before it is judged
  WorkerRecord& record = worker.record;
  record.end = worker.process.takeEnd();
  if (!record.end) return;
  record.endedAt = Clock::now();
  reactor_.remove(worker.process.endFd());
  takeMessages(worker);  // it may have told its name and died before we looked
  --left_;
  noteEnd(record);
  if (record.isServer && record.end->killed && phase_ == Phase::kWorking && workersAreLeft())
    console_.notice("treadle run: " + identify(record) + " " + howItEnded(record) +
                    "; workers that have joined go on without it");
  bool first = phase_ == Phase::kWorking && hasFailed(record) && left_ > 0;
  if (first)
    console_.notice("treadle run: " + identify(record) + " " + howItEnded(record) + "; the others have " +
                    toText(options_.grace) + " to end by themselves");
  reconsider();
}

bool Job::isRunning(pid_t pid) const {
  for (const auto& worker : workers_)
    if (worker->record.pid == pid && !worker->record.end) return true;
  return false;
}

// The job goes on without a server that is killed; where it cannot, as its workers still join, they fail. A server
// gives up when a worker ends well without a word to the others, too: then nothing has failed.
bool Job::hasFailed(const WorkerRecord& process) {
  if (!process.end || process.end->good()) return false;
  return !process.isServer || !(process.gaveUp || process.end->killed);
}

bool Job::anyFailed() const {
  return std::any_of(workers_.begin(), workers_.end(), [](const auto& one) { return hasFailed(one->record); });
}

bool Job::onlyStoppedLeft() const {
  for (const auto& worker : workers_)
    if (!worker->record.end && !worker->record.stop) return false;
  return left_ > 0;
}

// Called after every change: what is there to wait for now?
void Job::reconsider() {
  if (left_ == 0) return disarm();
  if (phase_ == Phase::kWorking && (anyFailed() || interrupts_ > 0)) {
    phase_ = Phase::kGrace;
    arm(options_.grace);
  }
  bool someEnded = left_ < static_cast<int>(workers_.size());
  if (phase_ != Phase::kWorking) {
    if (onlyStoppedLeft() && phase_ != Phase::kKilled) killAll();
  } else if (!onlyStoppedLeft() || !someEnded) {
    // All of them stopped is somebody who looks at the job with a debugger, and none of our business.
    disarm();
  } else if (!timer_) {
    // The others ended well and this one is stopped. It may yet go on, but half the grace is all it gets:
    // those who wait for the launcher count from the stop.
    arm(options_.grace / 2);
  }
}

void Job::onTimer() {
  timer_.reset();
  if (phase_ == Phase::kGrace)
    askToEnd();
  else
    killAll();
}

void Job::askToEnd() {
  phase_ = Phase::kTerminating;
  for (auto& worker : workers_) endBy(*worker, worker->record.stop ? SIGKILL : SIGTERM);
  arm(kTermToKill);
}

void Job::killAll() {
  phase_ = Phase::kKilled;
  disarm();
  for (auto& worker : workers_) endBy(*worker, SIGKILL);
}

// From now on its end is our doing, and nobody looks for the culprit there.
void Job::endBy(Worker& worker, int signal) {
  if (worker.record.end) return;
  worker.record.sentSignal = signal;
  worker.process.signal(signal);
}

void Job::arm(Duration after) {
  disarm();
  timer_ = reactor_.at(deadlineAfter(after), [this] { onTimer(); });
}

void Job::disarm() {
  if (timer_) reactor_.cancel(*timer_);
  timer_.reset();
}

void Job::interrupt(int signal) {
  if (left_ == 0) {  // only output is left to be written: the run gives that up
    ++interrupts_;
    return;
  }
  if (!anyFailed() && interrupts_ == 0) interruptedBy_ = signal;
  if (++interrupts_ > 1) {
    console_.notice("treadle run: " + io::signalName(signal) + " again; all workers are killed");
    return killAll();
  }
  console_.notice("treadle run: " + io::signalName(signal) + "; the workers have " + toText(options_.grace) +
                  " to end, a second one kills them");
  // SIGPIPE says that nobody reads our output any more, which is not the workers' fault. Servers end with the others,
  // which may need them until then.
  for (auto& worker : workers_) {
    if (worker->record.isServer) continue;
    endBy(*worker, signal == SIGPIPE ? SIGTERM : signal);
    if (!worker->record.stop) continue;
    worker->process.signal(SIGCONT);  // a stopped one would not see the signal
    worker->record.stop.reset();
  }
  reconsider();
}

void Job::passOn(int signal) {
  for (auto& worker : workers_)
    if (!worker->record.isServer) worker->process.signal(signal);
}

std::vector<WorkerRecord> Job::records() const {
  std::vector<WorkerRecord> all;
  for (const auto& worker : workers_) all.push_back(worker->record);
  return all;
}

int Job::exitCode() const {
  if (interruptedBy_ != 0) return 128 + interruptedBy_;
  if (!anyFailed()) return 0;
  std::vector<WorkerRecord> all = records();
  return exitCodeOf(all[firstFailure(all).value()]);
}

std::string Job::summary() const {
  std::vector<WorkerRecord> all = records();
  if (interruptedBy_ != 0) {
    std::vector<int> killed;
    for (const WorkerRecord& worker : all)
      if (worker.end && worker.end->killed && worker.end->value == SIGKILL) killed.push_back(worker.rank);
    std::string rest = killed.empty() ? "all workers have ended" : rankList(killed) + " had to be killed";
    return "ended by " + io::signalName(interruptedBy_) + "; " + rest;
  }
  return anyFailed() ? describeFailure(all, firstFailure(all).value()) : "";
}

}  // namespace treadle::cli

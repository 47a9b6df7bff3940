#include "treadle/cli/run.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "treadle/cli/command_line.h"
#include "treadle/cli/worker_environment.h"

namespace treadle::cli {
namespace {

using namespace std::chrono_literals;

// How long what workers left behind may still write (a `tee` in a script, say) before it is killed.
constexpr Duration kOutputAfterEnd = 1s;
// How long killed orphans may take to be gone.
constexpr Duration kOrphansGone = 2s;

// Signals as events: blocked, and read from a descriptor. One that was ignored when we were started stays
// ignored, as nohup and shells without job control want it.
Result<io::Fd> takeSignals() {
  sigset_t taken;
  sigemptyset(&taken);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    struct sigaction now{};
    ::sigaction(signal, nullptr, &now);
    if (now.sa_handler != SIG_IGN) sigaddset(&taken, signal);
  }
  ::signal(SIGCHLD, SIG_DFL);  // ignored, the kernel would throw away how children ended
  sigaddset(&taken, SIGCHLD);
  ::signal(SIGPIPE, SIG_IGN);
  ::sigprocmask(SIG_BLOCK, &taken, nullptr);
  io::Fd fd(::signalfd(-1, &taken, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd.valid()) return io::errnoStatus(Code::kResourceExhausted, "signals cannot be read", errno);
  return fd;
}

class Run {
 public:
  // The order of the members is the order of their making: job and relay leave the reactor before it goes.
  Run(std::unique_ptr<io::Reactor> reactor, io::Fd signals, const RunOptions& options)
      : reactor_(std::move(reactor)),
        signals_(std::move(signals)),
        console_(*reactor_, STDOUT_FILENO, STDERR_FILENO, [this] { relay_.resume(); }),
        relay_(*reactor_, console_),
        job_(*reactor_, console_, relay_, options) {}

  // What can fail before there is a worker.
  Status prepare(uint16_t wantedPort);
  Status start() { return job_.start(port_.port, key_); }
  int toTheEnd();

 private:
  void onSignals();
  void onChildren();
  void step();
  void waitUntil(TimePoint deadline, UniqueFunction<bool()> done);
  void killOrphans();

  std::unique_ptr<io::Reactor> reactor_;
  io::Fd signals_;
  ReservedPort port_;
  JobKey key_;
  Console console_;
  Relay relay_;
  Job job_;
  // Children from before: a program that put this one into its own place had started them. They are not ours to end.
  std::set<pid_t> strangers_;
};

Status Run::prepare(uint16_t wantedPort) {
  const std::vector<pid_t> children = io::childProcesses();
  strangers_ = {children.begin(), children.end()};
  Result<ReservedPort> port = reservePort(wantedPort);
  if (!port.ok()) return std::move(port).status();
  port_ = std::move(*port);
  Result<JobKey> key = makeJobKey();
  if (!key.ok()) return std::move(key).status();
  key_ = std::move(*key);
  return reactor_->add(signals_.get(), EPOLLIN, std::make_shared<OnEvents>([this] { onSignals(); }));
}

void Run::onSignals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    int signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD)
      onChildren();
    else if (signal == SIGUSR1 || signal == SIGUSR2)
      job_.passOn(signal);
    else
      job_.interrupt(signal);
  }
}

void Run::onChildren() {
  job_.onChildrenChanged();
  // Adopted ones that have ended; the workers' ends are the job's business.
  for (pid_t child : io::childProcesses())
    if (!job_.isRunning(child) && ::waitpid(child, nullptr, WNOHANG) > 0) strangers_.erase(child);
}

void Run::step() {
  reactor_->poll();
  // As a program in a pipeline ends when nobody reads it any more. Any other error (a full disk) costs the
  // output only.
  if (console_.error() == EPIPE && job_.interrupts() == 0) job_.interrupt(SIGPIPE);
}

// A signal ends these waits: none of them is worth more than the wish to be gone.
void Run::waitUntil(TimePoint deadline, UniqueFunction<bool()> done) {
  int interrupts = job_.interrupts();
  auto timer = reactor_->at(deadline, [] {});
  while (!done() && Clock::now() < deadline && job_.interrupts() == interrupts) step();
  reactor_->cancel(timer);
}

// What workers started and left behind has become our child: nothing of a job outlives it.
void Run::killOrphans() {
  waitUntil(deadlineAfter(kOrphansGone), [this] {
    bool gone = true;
    for (pid_t child : io::childProcesses()) {
      if (strangers_.contains(child)) continue;
      ::kill(child, SIGKILL);  // a child's number is not given away before we wait for it
      ::waitpid(child, nullptr, WNOHANG);
      gone = false;
    }
    return gone;
  });
}

// The last line of standard error has to be the summary, so everything the workers and their children wrote
// goes first.
int Run::toTheEnd() {
  while (job_.running()) step();
  waitUntil(deadlineAfter(kOutputAfterEnd), [this] { return relay_.done(); });
  killOrphans();
  relay_.finish();
  if (std::string summary = job_.summary(); !summary.empty()) console_.notice("treadle run: " + summary);
  waitUntil(kNever, [this] { return console_.drained(); });
  return job_.exitCode();
}

}  // namespace

int exitCodeFor(const Status& status) {
  if (status.code() == Code::kNotFound) return kExitNotFound;
  return status.code() == Code::kFailedPrecondition ? kExitNotExecutable : kExitCannotStart;
}

int runJob(const RunOptions& options) {
  io::adoptOrphans();
  Result<io::Fd> signals = takeSignals();
  Result<std::unique_ptr<io::Reactor>> reactor = io::Reactor::make();
  Status status = signals.ok() ? reactor.status() : signals.status();
  int exitCode = kExitCannotStart;
  if (status.ok()) {
    Run run(std::move(*reactor), std::move(*signals), options);
    status = run.prepare(options.masterPort);
    if (status.ok()) {
      status = run.start();
      if (status.ok()) return run.toTheEnd();
      exitCode = exitCodeFor(status);
    }
  }
  std::string text = "treadle run: " + status.message() + "\n";
  (void)!::write(STDERR_FILENO, text.data(), text.size());
  return exitCode;
}

}  // namespace treadle::cli

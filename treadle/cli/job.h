#pragma once
// The workers of one `treadle run`: starts all or none, notices how each ends or stops, and sees to it that
// all end once one has failed. Owned by the run; its reactor's thread only.
//
//   working      until one fails, but for servers that are killed, or a signal comes
//   grace        the others end by their own errors, which say more than a SIGTERM would give them time for
//   terminating  the grace ran out: SIGTERM to all, SIGKILL to stopped ones; one second
//   killed       SIGKILL to all
//
// When only stopped workers are left there is nothing to wait for: they are killed at once.

#include <optional>
#include <string>
#include <vector>

#include "treadle/cli/console.h"
#include "treadle/cli/relay.h"
#include "treadle/cli/report.h"
#include "treadle/cli/worker_environment.h"
#include "treadle/core/base/clock.h"
#include "treadle/core/io/process.h"
#include "treadle/core/io/reactor.h"

namespace treadle::cli {

struct RunOptions {
  int workers = 0;
  int servers = 0;      // `treadle server` processes, with the ranks after the workers'
  std::string program;  // a path
  std::vector<std::string> arguments;
  Duration grace = std::chrono::seconds(10);
  uint16_t masterPort = 0;  // 0: any free one
};

class Job {
 public:
  Job(io::Reactor& reactor, Console& console, Relay& relay, const RunOptions& options)
      : reactor_(reactor), console_(console), relay_(relay), options_(options) {}
  ~Job();

  // When one cannot be started, those before it are killed.
  Status start(uint16_t masterPort, const JobKey& jobKey);

  bool running() const { return left_ > 0; }

  bool isRunning(pid_t pid) const;  // whether that is a worker that has not ended

  // A SIGCHLD came: workers may have stopped or gone on. (Ends are told by descriptors, in the order they
  // happened.)
  void onChildrenChanged();

  // The launcher was asked to end: passes the signal on the first time, kills the second time.
  void interrupt(int signal);
  int interrupts() const { return interrupts_; }

  // A signal that is the workers' business alone.
  void passOn(int signal);

  // Once no worker runs: the launcher's exit code, and what to say about it (nothing when all went well).
  int exitCode() const;
  std::string summary() const;

 private:
  enum class Phase { kWorking, kGrace, kTerminating, kKilled };
  struct Worker {
    io::Process process;
    WorkerRecord record;
    io::Fd status;  // the launcher's end of the status socket (cluster/status_socket.h)
  };

  int processes() const { return options_.workers + options_.servers; }
  Status startWorker(int rank, uint16_t masterPort, const JobKey& jobKey);
  void onEnd(Worker& worker);
  void takeMessages(Worker& worker);
  static void takeMessage(WorkerRecord& record, std::string_view message);
  void noteEnd(const WorkerRecord& ended);
  void reportFirstEnd(const WorkerRecord& ended);
  void reconsider();
  bool workersAreLeft() const;
  static bool hasFailed(const WorkerRecord& process);
  bool anyFailed() const;
  bool onlyStoppedLeft() const;
  void onTimer();
  void arm(Duration after);
  void disarm();
  void askToEnd();
  void killAll();
  void endBy(Worker& worker, int signal);
  std::vector<WorkerRecord> records() const;

  io::Reactor& reactor_;
  Console& console_;
  Relay& relay_;
  const RunOptions options_;
  std::vector<std::unique_ptr<Worker>> workers_;  // by rank
  int left_ = 0;                                  // workers that have not ended
  std::string master_;                            // host:port
  bool reported_ = false;                         // the workers know which of them ended first
  Phase phase_ = Phase::kWorking;
  std::optional<io::Reactor::TimerId> timer_;
  std::optional<io::Reactor::TimerId> giveUpTimer_;  // until the end of a worker that gave up is reported
  int interrupts_ = 0;
  int interruptedBy_ = 0;  // the signal that ended the job, when nothing had failed before it
};

}  // namespace treadle::cli

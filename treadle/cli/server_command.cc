#include "treadle/cli/server_command.h"

#include <signal.h>

#include <iostream>
#include <memory>

#include "treadle/cli/numbers.h"
#include "treadle/cli/run.h"
#include "treadle/cli/server_report.h"
#include "treadle/core/base/error.h"
#include "treadle/core/worker/worker.h"

namespace treadle::cli {
namespace {

constexpr double kLeastSeconds = 0.001, kMostSeconds = 86'400;

constexpr const char* kServerCommand = "treadle server";
constexpr const char* kServerExplanation = R"(Examples:
  treadle run -n 4 --servers 2 -- ./train      starts two of them, after the four workers
  TREADLE_SERVERS=2 mpirun -n 4 ./train : -n 2 treadle server          on one machine
  TREADLE_RANK=4 TREADLE_WORLD_SIZE=6 TREADLE_SERVERS=2 TREADLE_MASTER=10.0.0.1:29500 treadle server

A summation server is a worker of the job that sums the others' tensors in each of their summation services
(SummationService), so that they move fewer bytes than in an all-reduce. It ends when the job is over. When it is lost,
the job goes on without it. `treadle plan --workers N --servers K` says what servers gain.

What it needs: a rank and the same variables as the workers, of whatever launcher, and TREADLE_SERVERS, the number of
servers, which is the same on all workers; the servers are the highest ranks. A machine of its own, with a network
like that of the workers: beside a worker it uses that worker's network. One core moves and sums about 1 GB/s each way.
Memory: for each service 16 MiB times the number of its workers; besides, its share of the parameters where they are
asynchronous, and 4 bytes for each number of its share where sums are compressed to one bit or their largest. No model,
no GPU, no libtorch. Options of the job that the workers set in JoinOptions have to be the same here. It takes part in
up to 1,000 services at a time; a worker can be the first of 256.

While something moves it prints how many services and workers it has, bytes per second and sums per second, of parts
of tensors of at most 4 MiB.

Exit code 2: wrong usage; 1: it could not join, or the job did not end well.)";

struct ServerChoice {
  std::string name, every = "10", heartbeat = "5", joinTimeout = "300", listen, announce;
  bool allowPlaintext = false;
};

// FailedPrecondition where the place is a worker's.
Result<Launch> findPlace() {
  Result<Launch> launch = Launch::detect();
  if (!launch.ok() || launch->isServer()) return launch;
  const std::string job = "rank " + std::to_string(launch->rank) + " of " + std::to_string(launch->worldSize);
  if (launch->servers > 0)
    return failedPrecondition(job + " is a worker's: the servers are the ranks from " +
                              std::to_string(launch->workers()) + " on (TREADLE_SERVERS is " +
                              std::to_string(launch->servers) + ")");
  return failedPrecondition((launch->open() ? "an open job has no servers"
                                            : job + " is not a server's: set TREADLE_SERVERS, to the same "
                                                    "number on all workers; the servers are the highest ranks"));
}

int serveJob(JoinOptions options, Duration interval) {
  try {
    const std::shared_ptr<Worker> worker = Worker::join(std::move(options));
    const std::string name = worker->self().name + ": ";
    const auto read = [&] { return worker->metrics().summation; };
    const auto write = [&](const std::string& line) { std::cout << name + line + "\n" << std::flush; };
    write("sums for " + countText(worker->peers().size(), "worker"));
    {
      const ServerReport report(interval, read, write);
      worker->shutdown();
    }
    write("the job is over; " + totalOf(read()));
    return 0;
  } catch (const std::exception& error) {  // also of a thread for its reports that the system does not give
    return complain(kServerCommand, error.what(), kExitCannotStart);
  }
}

// A signal for the workers, which their launcher sends to all, and a reader of the output that goes, end no server.
void ignoreSignals() {
  for (const int signal : {SIGUSR1, SIGUSR2, SIGPIPE}) ::signal(signal, SIG_IGN);
}

// 0, where it `mayBeNone`, or from `least` on.
Result<Duration> secondsOf(const char* option, const std::string& text, double least, bool mayBeNone = false) {
  const std::optional<double> seconds = numberIn<double>(text, 0, kMostSeconds);
  if (seconds && (*seconds >= least || (mayBeNone && *seconds == 0)))
    return std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*seconds));
  return invalidArgument(std::string(option) + " is '" + text + "', not a number of seconds from " + fixed(least, 3) +
                         " to 86400" + (mayBeNone ? ", or 0" : ""));
}

Status read(const ServerChoice& choice, JoinOptions& options, Duration& interval) {
  options.name = choice.name;
  options.allowPlaintext = choice.allowPlaintext;
  if (!choice.listen.empty()) options.listenAddress = choice.listen;
  if (!choice.announce.empty()) options.announceAddress = choice.announce;
  const Result<Duration> every = secondsOf("--every", choice.every, kLeastSeconds, /*mayBeNone=*/true);
  const Result<Duration> heartbeat = secondsOf("--heartbeat-timeout", choice.heartbeat, 0.1);
  const Result<Duration> join = secondsOf("--join-timeout", choice.joinTimeout, kLeastSeconds);
  for (const auto* one : {&every, &heartbeat, &join}) TREADLE_RETURN_IF_ERROR(one->status());
  interval = *every > Duration::zero() ? *every : kNoTimeout;
  options.heartbeatTimeout = *heartbeat;
  options.joinTimeout = *join;
  return options.validate();
}

int runServer(const ServerChoice& choice, const CommandLine& line) {
  JoinOptions options;
  Duration interval{};
  Status usable = read(choice, options, interval);
  if (line.separated) usable = invalidArgument("it starts no program");
  if (!usable.ok()) return complain(kServerCommand, usable.message() + "; see `treadle server --help`", kExitUsage);
  Result<Launch> launch = findPlace();
  if (!launch.ok()) return complain(kServerCommand, launch.status().message(), kExitCannotStart);
  options.launch = std::move(*launch);
  ignoreSignals();
  return serveJob(std::move(options), interval);
}

}  // namespace

void addServerCommand(CLI::App& app, const CommandLine& line, int* exitCode) {
  auto choice = std::make_shared<ServerChoice>();
  CLI::App* command = app.add_subcommand("server", "Sum tensors for the workers of a job, as one of its servers");
  command->footer(kServerExplanation);
  const auto add = [&](const char* option, std::string* text, const char* help, const char* type) {
    command->add_option(option, *text, help)->type_name(type);
  };
  add("--name", &choice->name, "in the job (\"server\" and its rank)", "NAME");
  add("--every", &choice->every, "how often it reports, while something moves; 0: never (10)", "SECONDS");
  add("--heartbeat-timeout", &choice->heartbeat, "JoinOptions::heartbeatTimeout, as of the workers (5)", "SECONDS");
  add("--join-timeout", &choice->joinTimeout, "until all workers have joined (300)", "SECONDS");
  add("--listen", &choice->listen, "JoinOptions::listenAddress: \"tcp://10.0.0.7:0\"", "ADDRESS");
  add("--announce", &choice->announce, "JoinOptions::announceAddress: where the others reach it", "ADDRESS");
  command->add_flag("--allow-plaintext", choice->allowPlaintext, "JoinOptions::allowPlaintext, as of the workers");
  command->callback([choice, &line, exitCode] { *exitCode = runServer(*choice, line); });
}

}  // namespace treadle::cli

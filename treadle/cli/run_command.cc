#include "treadle/cli/run_command.h"

#include <memory>

#include "treadle/cli/numbers.h"
#include "treadle/cli/run.h"
#include "treadle/core/io/process.h"

namespace treadle::cli {
namespace {

// More would need more descriptors than a process usually has.
constexpr int kMaxWorkers = 1024;
constexpr double kMaxGraceSeconds = 86'400;

constexpr const char* kCommand = "treadle run";
constexpr const char* kExamples = R"(Examples:
  treadle run -n 4 -- ./hybrid_digits --epochs 5
  treadle run -n 2 --grace 30 -- python3 train.py
  treadle run -n 4 --servers 2 -- ./train   with two summation servers: see `treadle server --help`
  treadle run -n 4 -- sh -c 'echo "I am $RANK of $WORLD_SIZE"'

Each line that a worker writes comes out with its rank in front: "[2] ...". Workers read their place from
TREADLE_RANK, TREADLE_WORLD_SIZE, TREADLE_SERVERS, TREADLE_MASTER and TREADLE_JOB_KEY_FD (Launch::detect() does),
or from RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; TREADLE_TERMINAL=1 tells them that their output is shown
on a terminal. Their standard input is empty.

Servers end with the job: signals are passed on to the workers alone.

The exit code is 0 when all workers ended with 0; otherwise that of the worker that failed first, or 128 + the
signal that killed it. 2: wrong usage; 126, 127: the program cannot be run, is not there.)";

// CLI11 knows nothing of what stands behind the `--`.
class Help final : public CLI::Formatter {
  std::string make_usage(const CLI::App*, std::string) const override {
    return "Usage: treadle run -n N [options] -- program args...\n";
  }
};

// The values as they were typed: CLI11's own messages about numbers name neither the value nor the remedy.
struct Texts {
  std::string workers, servers = "0", grace = "10", masterPort = "0";
};

Result<RunOptions> readOptions(const Texts& texts, const CommandLine& line) {
  auto workers = numberIn<int>(texts.workers, 1, kMaxWorkers);
  auto servers = numberIn<int>(texts.servers, 0, kMaxWorkers);
  auto grace = numberIn<double>(texts.grace, 0, kMaxGraceSeconds);
  auto port = numberIn<int>(texts.masterPort, 0, 65'535);
  if (texts.workers.empty()) return invalidArgument("how many workers? Say -n 4, for example");
  if (!workers)
    return invalidArgument("-n is '" + texts.workers + "', not a number of workers from 1 to " +
                           std::to_string(kMaxWorkers));
  if (!servers || *workers + *servers > kMaxWorkers)
    return invalidArgument("--servers is '" + texts.servers + "', not a number from 0 to " +
                           std::to_string(kMaxWorkers - *workers));
  if (!grace) return invalidArgument("--grace is '" + texts.grace + "', not a number of seconds from 0 to 86400");
  if (!port) return invalidArgument("--master-port is '" + texts.masterPort + "', not a port from 0 to 65535");
  if (line.program.empty())
    return invalidArgument("which program? It stands behind `--`: treadle run -n 4 -- program args...");
  RunOptions options;
  options.workers = *workers;
  options.servers = *servers;
  options.grace = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*grace));
  options.masterPort = static_cast<uint16_t>(*port);
  options.arguments.assign(line.program.begin() + 1, line.program.end());
  return options;
}

int run(const Texts& texts, const CommandLine& line) {
  Result<RunOptions> options = readOptions(texts, line);
  if (!options.ok()) return complain(kCommand, options.status().message() + "; see `treadle run --help`", kExitUsage);
  // Looked for before anything is started, so that a typing error starts nothing.
  Result<std::string> program = io::findProgram(line.program.front());
  if (!program.ok()) return complain(kCommand, program.status().message(), exitCodeFor(program.status()));
  options->program = *program;
  return runJob(*options);
}

}  // namespace

void addRunCommand(CLI::App& app, const CommandLine& line, int* exitCode) {
  auto texts = std::make_shared<Texts>();
  // expected(0, 1): a value that is missing is read as "", and readOptions says what belongs there.
  CLI::App* command = app.add_subcommand("run", "Start the workers of a job on this machine and watch over them");
  command->formatter(std::make_shared<Help>());
  command->footer(kExamples);
  command->add_option("-n,--workers", texts->workers, "how many workers to start")->expected(0, 1)->type_name("N");
  command->add_option("--servers", texts->servers, "how many summation servers to start beside them (0)")
      ->expected(0, 1)
      ->type_name("K");
  command
      ->add_option("--grace", texts->grace,
                   "how long the others may take to end by themselves once one has failed (10)")
      ->expected(0, 1)
      ->type_name("SECONDS");
  command
      ->add_option("--master-port", texts->masterPort,
                   "the port of 127.0.0.1 on which rank 0 is to listen (0: any free one)")
      ->expected(0, 1)
      ->type_name("PORT");
  command->callback([texts, &line, exitCode] { *exitCode = run(*texts, line); });
}

}  // namespace treadle::cli

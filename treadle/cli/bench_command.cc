#include "treadle/cli/bench_command.h"

#include <unistd.h>

#include <iostream>
#include <memory>

#include "treadle/cli/bench.h"
#include "treadle/cli/numbers.h"
#include "treadle/cli/place.h"
#include "treadle/cli/raw_partner.h"
#include "treadle/cli/run.h"
#include "treadle/cli/terminal.h"

namespace treadle::cli {
namespace {

constexpr int kMaxMegabytes = 1000, kMaxRepetitions = 1'000'000;

constexpr const char* kBenchCommand = "treadle bench";
constexpr const char* kBenchExplanation = R"(Examples:
  treadle bench                              two processes of this machine, started by the command itself
  treadle run -n 2 -- treadle bench          between ranks 0 and 1 of a job
  treadle bench --channels tcp,lanes         as between workers that share no memory
  treadle bench --sizes 40 --repetitions 50  one size, more often

Ours and what stands beside it are measured in turn: raw messages to a process without any library over the
same kind of socket, a plain write and read of the same bytes there and back, and one copy of them in warm
memory. A ratio of 1 is as fast as that; below 1 is faster.)";

struct BenchChoice {
  std::string sizes = "1,4,40,400", repetitions, channels, timeout = "60", rawPartner;
  bool json = false;
};

Result<std::vector<int>> sizesIn(const std::string& all) {
  std::vector<int> sizes;
  std::string text = all;
  for (bool more = true; more;) {
    size_t comma = text.find(',');
    auto size = numberIn<int>(text.substr(0, comma), 1, kMaxMegabytes);
    if (!size)
      return invalidArgument("--sizes is '" + all + "', not numbers of MiB from 1 to 1000 with commas, like 1,4,40");
    sizes.push_back(*size);
    more = comma != std::string::npos;
    if (more) text = text.substr(comma + 1);
  }
  return sizes;
}

Result<BenchOptions> readOptions(const BenchChoice& choice, const CommandLine& line) {
  BenchOptions options;
  if (line.separated) return invalidArgument("it starts no program");
  Result<std::vector<int>> sizes = sizesIn(choice.sizes);
  if (!sizes.ok()) return std::move(sizes).status();
  options.megabytes = *sizes;
  if (!choice.repetitions.empty()) {
    auto repetitions = numberIn<int>(choice.repetitions, 1, kMaxRepetitions);
    if (!repetitions)
      return invalidArgument("--repetitions is '" + choice.repetitions + "', not a number from 1 to 1000000");
    options.repetitions = *repetitions;
  }
  auto seconds = numberIn<double>(choice.timeout, 1, 86'400);
  if (!seconds)
    return invalidArgument("--timeout is '" + choice.timeout + "', not a number of seconds from 1 to 86400");
  options.timeout = std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*seconds));
  Result<Channels> channels =
      choice.channels.empty() ? JoinOptions().channelsToUse() : Channels::parse(choice.channels);
  if (!channels.ok()) return choice.channels.empty() ? channels.status() : channels.status().withContext("--channels");
  options.channels = *channels;
  return options;
}

// One line, redrawn, where somebody looks at it.
void showProgress(const std::string& what) {
  static const bool screen = isScreen(STDERR_FILENO);
  if (screen) std::cerr << "\r\x1b[K" << what << std::flush;
}

int serveRaw(const std::string& text) {
  size_t colon = text.find(':');
  auto socket = numberIn<int>(text.substr(0, colon), 3, 1 << 20);
  auto bytes = colon == std::string::npos ? std::nullopt
                                          : numberIn<size_t>(text.substr(colon + 1), 1, size_t{kMaxMegabytes} << 20);
  if (!socket || !bytes) return complain(kBenchCommand, "--raw-partner is for the command itself", kExitUsage);
  return RawPartner::serve(*socket, *bytes);
}

int runBench(const BenchChoice& choice, const CommandLine& line) try {
  if (!choice.rawPartner.empty()) return serveRaw(choice.rawPartner);
  Result<BenchOptions> options = readOptions(choice, line);
  if (!options.ok())
    return complain(kBenchCommand, options.status().message() + "; see `treadle bench --help`", kExitUsage);
  std::vector<std::string> arguments = {"bench", "--timeout", choice.timeout};
  if (!choice.channels.empty()) arguments.insert(arguments.end(), {"--channels", choice.channels});
  Result<Place> place = Place::find(arguments);
  if (!place.ok()) return complain(kBenchCommand, place.status().message(), kExitCannotStart);
  Figures figures = measure(place->launch(), *options, &showProgress);
  showProgress("");
  if (place->launch().rank == 0) std::cout << (choice.json ? jsonOf(figures) : tableOf(figures)) << std::flush;
  return 0;
} catch (const Error& error) {
  showProgress("");
  return complain(kBenchCommand, error.what(), kExitCannotStart);
}

}  // namespace

void addBenchCommand(CLI::App& app, const CommandLine& line, int* exitCode) {
  auto choice = std::make_shared<BenchChoice>();
  CLI::App* command = app.add_subcommand("bench", "Measure calls and large values beside what the machine can do");
  command->footer(kBenchExplanation);
  auto option = [&](const char* name, std::string& text, const char* help, const char* type) {
    command->add_option(name, text, help)->expected(0, 1)->type_name(type);
  };
  option("--sizes", choice->sizes, "of large values, in MiB (1,4,40,400)", "N,N,...");
  option("--repetitions", choice->repetitions, "of each (as many as go into about 10 s)", "N");
  option("--channels", choice->channels, "what may be used, some of unix, tcp, lanes, shm and cma", "NAME,...");
  option("--timeout", choice->timeout, "how long it may take (60)", "SECONDS");
  command->add_flag("--json", choice->json, "the same as JSON");
  command->add_option(RawPartner::kOption, choice->rawPartner)->group("");  // for the command itself
  command->callback([choice, &line, exitCode] { *exitCode = runBench(*choice, line); });
}

}  // namespace treadle::cli

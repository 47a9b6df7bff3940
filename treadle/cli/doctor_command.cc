#include "treadle/cli/doctor_command.h"

#include <iostream>
#include <memory>

#include "treadle/cli/doctor.h"
#include "treadle/cli/numbers.h"
#include "treadle/cli/place.h"
#include "treadle/cli/run.h"

namespace treadle::cli {
namespace {

constexpr double kMinTimeoutSeconds = 1, kMaxTimeoutSeconds = 3600;

constexpr const char* kDoctorCommand = "treadle doctor";
constexpr const char* kDoctorExplanation = R"(Examples:
  treadle doctor                             two processes of this machine, started by the command itself
  treadle run -n 3 -- treadle doctor         between every two workers of a job
  TREADLE_CHANNELS=tcp,lanes treadle doctor  with what that leaves

Each channel is tried: 1 MiB goes there and another back, and the bytes have to be the right ones. What does
not work is told with the reason and what to do. The channels: unix, tcp: sockets; lanes: sockets of their
own for large tensors; shm: shared memory; cma: cross-memory attach, for arguments of blocking calls where no
memory can be shared. "in use" says which of them a job of these workers takes.

The exit code is 0 when every two workers can talk at all, else 1; 2: wrong usage.)";

struct DoctorChoice {
  std::string timeout = "10";
  bool json = false;
};

// Where the other process was started here, what it says may explain why no job came about.
void addWordsOfOther(Findings& findings, Place& place) {
  if (findings.trouble.empty()) return;
  std::string words = place.awaitOther(deadlineAfter(std::chrono::seconds(1)));
  while (words.ends_with('\n')) words.pop_back();
  if (!words.empty()) findings.trouble += "\nthe other process said: " + words;
}

int report(Findings findings, bool json, Place& place) {
  if (place.launch().rank != 0) {
    if (!findings.trouble.empty()) return complain(kDoctorCommand, findings.trouble, kExitCannotStart);
    return 0;
  }
  addWordsOfOther(findings, place);
  std::cout << (json ? jsonOf(findings) : tableOf(findings)) << std::flush;
  return findings.good() ? 0 : kExitCannotStart;
}

int runDoctor(const DoctorChoice& choice, const CommandLine& line) {
  auto seconds = numberIn<double>(choice.timeout, kMinTimeoutSeconds, kMaxTimeoutSeconds);
  if (!seconds)
    return complain(kDoctorCommand,
                    "--timeout is '" + choice.timeout + "', not a number of seconds from 1 to 3600; see `treadle " +
                        "doctor --help`",
                    kExitUsage);
  if (line.separated) return complain(kDoctorCommand, "it starts no program; see `treadle doctor --help`", kExitUsage);
  if (Result<Channels> channels = JoinOptions().channelsToUse(); !channels.ok())
    return complain(kDoctorCommand, channels.status().message(), kExitUsage);
  DoctorOptions options{std::chrono::duration_cast<Duration>(std::chrono::duration<double>(*seconds))};
  Result<Place> place = Place::find({"doctor", "--timeout", choice.timeout});
  if (!place.ok()) return complain(kDoctorCommand, place.status().message(), kExitCannotStart);
  return report(examine(place->launch(), options), choice.json, *place);
}

}  // namespace

void addDoctorCommand(CLI::App& app, const CommandLine& line, int* exitCode) {
  auto choice = std::make_shared<DoctorChoice>();
  CLI::App* command =
      app.add_subcommand("doctor", "Try which ways work between the workers, and say why the others do not");
  command->footer(kDoctorExplanation);
  command->add_option("--timeout", choice->timeout, "how long it may take (10)")->expected(0, 1)->type_name("SECONDS");
  command->add_flag("--json", choice->json, "the same as JSON");
  command->callback([choice, &line, exitCode] { *exitCode = runDoctor(*choice, line); });
}

}  // namespace treadle::cli

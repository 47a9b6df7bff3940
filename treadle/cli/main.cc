// The `treadle` command. Each subcommand lives in files of its own; here they meet.

#include <fcntl.h>
#include <unistd.h>

#include <iostream>

#include "treadle/cli/bench_command.h"
#include "treadle/cli/doctor_command.h"
#include "treadle/cli/plan_command.h"
#include "treadle/cli/run.h"
#include "treadle/cli/run_command.h"
#include "treadle/cli/server_command.h"

namespace {

// Whoever closed our standard descriptors would have the next file we open take their place.
void openStandardDescriptors() {
  for (int fd : {0, 1, 2})
    if (::fcntl(fd, F_GETFD) == -1) (void)::open("/dev/null", O_RDWR);
}

// The command's name for an error: "treadle run" or, where none is given, "treadle".
std::string commandOf(const treadle::cli::CommandLine& line) {
  for (const char* name : {"run", "doctor", "bench", "plan", "server"})
    if (!line.options.empty() && line.options.front() == name) return std::string("treadle ") + name;
  return "treadle";
}

int parse(CLI::App& app, const treadle::cli::CommandLine& line) {
  // CLI11 takes them last first.
  std::vector<std::string> reversed(line.options.rbegin(), line.options.rend());
  try {
    app.parse(reversed);
    return 0;
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help, --version
  } catch (const CLI::RequiredError&) {
    std::string given = line.options.empty() ? "" : "there is no command '" + line.options.front() + "'; ";
    std::cerr << "treadle: " << given << "the commands are: run, doctor, bench, plan, server; see `treadle --help`\n";
  } catch (const CLI::ExtrasError&) {
    std::string extra = app.remaining(true).empty() ? "?" : app.remaining(true).front();
    std::string what = extra.starts_with("-") ? "there is no option " + extra : "'" + extra + "' was not expected";
    std::string hint = commandOf(line) == "treadle run" ? " (the program to run stands behind `--`)" : "";
    std::cerr << commandOf(line) << ": " << what << hint << "; see `" << commandOf(line) << " --help`\n";
  } catch (const CLI::ParseError& error) {
    std::cerr << commandOf(line) << ": " << error.what() << "; see `" << commandOf(line) << " --help`\n";
  }
  return treadle::cli::kExitUsage;
}

}  // namespace

int main(int argc, char** argv) {
  openStandardDescriptors();
  treadle::cli::CommandLine line = treadle::cli::split(argc, argv);
  int exitCode = 0;
  CLI::App app("Treadle: programs on many machines train models together", "treadle");
  app.set_version_flag("--version", "treadle " TREADLE_VERSION);
  app.require_subcommand(1);
  treadle::cli::addRunCommand(app, line, &exitCode);
  treadle::cli::addDoctorCommand(app, line, &exitCode);
  treadle::cli::addBenchCommand(app, line, &exitCode);
  treadle::cli::addPlanCommand(app, line, &exitCode);
  treadle::cli::addServerCommand(app, line, &exitCode);
  int parsed = parse(app, line);
  return parsed != 0 ? parsed : exitCode;
}

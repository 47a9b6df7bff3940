// A worker that does nothing but join its job, meet the others and leave: join_program NAME [options].
//   --join-timeout SECONDS   how long the others may take to come
//   --wait                   after joining, stays until it gets SIGUSR1
//   --listen ADDRESS         JoinOptions::listenAddress
//   --allow-plaintext        JoinOptions::allowPlaintext
//   --echo TEXT --workers N  calls w0 to wN-1 with TEXT many times over, which has to come back; says "NAME reaches wI
//   on
//                            this host" where that is by a UNIX socket
// Says "NAME joined" and "NAME done"; an error is one line on standard error and exit code 1.

#include <signal.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <stdexcept>
#include <string>

#include "treadle/core.h"

namespace {

struct Options {
  treadle::JoinOptions join;
  bool wait = false;
  std::string text;
  int workers = 0;
};

std::string echo(std::string text) { return text; }

Options parse(int argc, char** argv) {
  if (argc < 2) throw std::runtime_error("usage: join_program NAME [--join-timeout SECONDS] [--wait]");
  Options options;
  options.join.name = argv[1];
  options.join.functions.add<&echo>("echo");
  for (int i = 2; i < argc; ++i) {
    std::string option = argv[i];
    if (option == "--wait") {
      options.wait = true;
    } else if (option == "--allow-plaintext") {
      options.join.allowPlaintext = true;
    } else if (option == "--listen" && i + 1 < argc) {
      options.join.listenAddress = argv[++i];
    } else if (option == "--echo" && i + 1 < argc) {
      options.text = argv[++i];
    } else if (option == "--workers" && i + 1 < argc) {
      options.workers = std::atoi(argv[++i]);
    } else if (option == "--join-timeout" && i + 1 < argc) {
      options.join.joinTimeout = std::chrono::milliseconds(std::lround(std::strtod(argv[++i], nullptr) * 1000));
    } else {
      throw std::runtime_error("unknown option " + option);
    }
  }
  return options;
}

void say(const std::string& name, const char* what) {
  std::printf("%s %s\n", name.c_str(), what);
  std::fflush(stdout);
}

// Small and on lanes.
void callAll(treadle::Worker& worker, const Options& options) {
  std::string large;
  while (large.size() < 4U << 20) large += options.text;
  for (int i = 0; i < options.workers; ++i) {
    const std::string peer = "w" + std::to_string(i);
    worker.waitForPeer(peer, options.join.joinTimeout);
    for (const std::string& text : {options.text, large})
      if (worker.call<&echo>(peer, text) != text) throw std::runtime_error(peer + " answered something else");
    if (worker.channelsTo(peer).unixSockets.inUse)
      say(options.join.name, ("reaches " + peer + " on this host").c_str());
  }
}

void run(const Options& options) {
  sigset_t awaited;
  sigemptyset(&awaited);
  sigaddset(&awaited, SIGUSR1);
  sigprocmask(SIG_BLOCK, &awaited, nullptr);  // before there are threads: they inherit it
  auto worker = treadle::Worker::join(options.join);
  say(options.join.name, "joined");
  if (options.wait) {
    int got = 0;
    sigwait(&awaited, &got);
  }
  if (options.workers > 0) callAll(*worker, options);
  worker->barrier();
  worker->shutdown();
  say(options.join.name, "done");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "join_program: %s\n", error.what());
    return 1;
  }
}

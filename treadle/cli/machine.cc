#include "treadle/cli/machine.h"

#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>

#include <fstream>
#include <sstream>

#include "treadle/cli/numbers.h"
#include "treadle/core/base/environment.h"

namespace treadle::cli {
namespace {

std::string firstLine(const std::string& path) {
  std::string line;
  std::getline(std::ifstream(path) >> std::ws, line);
  return line;
}

cpu_set_t allowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  (void)::sched_getaffinity(0, sizeof set, &set);
  return set;
}

struct Ticks {
  double idle = 0, all = 0;
};

// Of the cores that this process may run on. "cpu3 user nice system idle iowait irq softirq steal ..."
Ticks ticksSoFar() {
  cpu_set_t allowed = allowedCores();
  Ticks sum;
  std::ifstream stat("/proc/stat");
  for (std::string line; std::getline(stat, line) && line.starts_with("cpu");) {
    std::istringstream words(line.substr(3));
    int core = 0;
    if (line[3] == ' ' || !(words >> core) || core >= CPU_SETSIZE || !CPU_ISSET(core, &allowed)) continue;
    double ticks = 0;
    for (int field = 0; field < 8 && words >> ticks; ++field) {
      sum.all += ticks;
      if (field == 3 || field == 4) sum.idle += ticks;
    }
  }
  return sum;
}

std::string limitText(int resource, bool inBytes) {
  rlimit limit{};
  if (::getrlimit(static_cast<__rlimit_resource_t>(resource), &limit) != 0) return "not known";
  if (limit.rlim_cur == RLIM_INFINITY) return "unlimited";
  return inBytes ? bytesText(static_cast<double>(limit.rlim_cur)) : std::to_string(limit.rlim_cur);
}

Fact cores() {
  std::string text = std::to_string(usableCores());
  if (std::string quota = firstLine("/sys/fs/cgroup/cpu.max"); !quota.empty() && !quota.starts_with("max"))
    text += ", cgroup cpu.max " + quota;
  return {"cores", text, usableCores() < 2 ? "two workers take turns on it: give the job more" : ""};
}

Fact memory(size_t limitBytes) {
  if (limitBytes == 0) return {"memory for tensors", "none is kept", "lift the limit on address space (ulimit -v)"};
  std::string text = bytesText(static_cast<double>(limitBytes)) + " for each process";
  std::string most = firstLine("/sys/fs/cgroup/memory.max");
  bool container = !most.empty() && most != "max";
  return {"memory for tensors", text + ", half of the " + (container ? "container's or the machine's" : "machine's"),
          ""};
}

// "always within_size advise [never] deny force": the one in brackets holds.
Fact hugePages() {
  std::string line = firstLine("/sys/kernel/mm/transparent_hugepage/shmem_enabled");
  size_t begin = line.find('['), end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos)
    return {"huge pages, shared", "the kernel does not tell", ""};
  std::string mode = line.substr(begin + 1, end - begin - 1);
  bool none = mode == "never" || mode == "deny";
  return {"huge pages, shared", mode,
          none ? "the first use of memory is faster with: echo advise > "
                 "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
               : ""};
}

Fact openFiles() {
  constexpr rlim_t kFew = 1024;
  rlimit limit{};
  bool few = ::getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < kFew;
  return {"open files (ulimit -n)", limitText(RLIMIT_NOFILE, false),
          few ? "each peer takes two to ten: raise it for large jobs" : ""};
}

}  // namespace

std::string kernelText() {
  utsname name{};
  if (::uname(&name) != 0) return "not known";
  return std::string(name.sysname) + " " + name.release + " " + name.machine;
}

std::string processorText() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (size_t colon = line.find(": "); line.starts_with("model name") && colon != std::string::npos)
      return line.substr(colon + 2);
  return "a processor of unknown make";
}

int usableCores() {
  cpu_set_t set = allowedCores();
  return CPU_COUNT(&set);
}

double idleCores() {
  constexpr int kWindowMilliseconds = 100;
  Ticks before = ticksSoFar();
  (void)::poll(nullptr, 0, kWindowMilliseconds);
  Ticks after = ticksSoFar();
  double all = after.all - before.all;
  return all > 0 ? (after.idle - before.idle) / all * usableCores() : -1;
}

Fact idleFact() {
  double idle = idleCores();
  if (idle < 0) return {"idle cores", "the system does not tell", ""};
  return {"idle cores", fixed(idle, 1),
          idle < 0.5 ? "calls wait for a core: run fewer programs or threads beside the job" : ""};
}

std::vector<Fact> factsOfMachine(size_t memoryLimitBytes) {
  std::string told = base::environment("TREADLE_CHANNELS").value_or("not set: all channels may be used");
  return {{"kernel", kernelText(), ""},
          cores(),
          memory(memoryLimitBytes),
          hugePages(),
          openFiles(),
          {"locked memory (ulimit -l)", limitText(RLIMIT_MEMLOCK, true) + " (this version locks none)", ""},
          {"file size (ulimit -f)", limitText(RLIMIT_FSIZE, true), ""},
          {"address space (ulimit -v)", limitText(RLIMIT_AS, true), ""},
          {"TREADLE_CHANNELS", told, ""}};
}

}  // namespace treadle::cli

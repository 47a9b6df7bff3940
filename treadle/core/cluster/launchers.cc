#include "treadle/core/cluster/launchers.h"

#include <array>

#include "treadle/core/base/environment.h"
#include "treadle/core/cluster/launch_variables.h"

namespace treadle::cluster {
namespace {

constexpr const char* kThisHost = "127.0.0.1";

std::string valueOf(const char* name) { return base::environment(name).value_or(""); }

// "host:port", "[::1]:port" for an IPv6 address.
Status readMaster(const char* name, const std::string& text, Launch& launch) {
  size_t colon = text.rfind(':');
  std::string host = text.substr(0, colon);
  bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (colon == std::string::npos || !isHost(host) || (!bracketed && host.find(':') != std::string::npos))
    return wrong(name, text, "a host and a port like 127.0.0.1:29500");
  Result<uint16_t> port = portIn(name, std::string_view(text).substr(colon + 1));
  if (!port.ok()) return wrong(name, text, "a host and a port from 1 to 65535, like 127.0.0.1:29500");
  launch.masterAddress = host;
  launch.masterPort = *port;
  return {};
}

// Host and port from two variables that must be there.
Status readMasterPair(const char* hostName, const char* portName, const char* given, Launch& launch) {
  for (const char* name : {hostName, portName})
    if (Result<std::string> value = required(name, given); !value.ok()) return std::move(value).status();
  Result<std::string> host = hostIn(hostName);
  if (!host.ok()) return std::move(host).status();
  Result<uint16_t> port = portIn(portName, valueOf(portName));
  if (!port.ok()) return std::move(port).status();
  launch.masterAddress = *host;
  launch.masterPort = *port;
  return {};
}

// For launchers that tell no host: this one when all workers are on it, as the number of those here tells, otherwise
// MASTER_ADDR or what is `known`.
Status findMaster(const char* localName, const char* launcher, std::string known, Launch& launch) {
  if (valueOf(localName) == std::to_string(launch.worldSize)) {
    launch.masterAddress = kThisHost;
  } else if (base::environment("MASTER_ADDR")) {
    Result<std::string> host = hostIn("MASTER_ADDR");
    if (!host.ok()) return std::move(host).status();
    launch.masterAddress = *host;
  } else if (!known.empty()) {
    launch.masterAddress = std::move(known);
  } else {
    return failedPrecondition("the workers are on several hosts, and " + std::string(launcher) +
                              " does not tell which one has rank 0: set MASTER_ADDR to it for all of them");
  }
  return {};
}

// Of an open job: the first worker has rank 0, the others are given theirs.
Status readOpenPlace(Launch& launch) {
  launch.worldSize = kOpenWorld;
  std::string rank = valueOf("TREADLE_RANK");
  if (rank != "0" && rank != "any")
    return wrong("TREADLE_RANK", rank, "0 for the first worker of an open job or 'any' for the others");
  launch.rank = rank == "0" ? 0 : kAnyRank;
  return {};
}

Status readTreadleRun(Launch& launch) {
  constexpr std::string_view kFile = "file://";
  if (valueOf("TREADLE_WORLD_SIZE") == "open") {
    TREADLE_RETURN_IF_ERROR(readOpenPlace(launch));
  } else {
    TREADLE_RETURN_IF_ERROR(readPlace("TREADLE_RANK", "TREADLE_WORLD_SIZE", launch));
  }
  Result<std::string> master = required("TREADLE_MASTER", "TREADLE_RANK");
  if (!master.ok()) return std::move(master).status();
  if (!master->starts_with(kFile)) return readMaster("TREADLE_MASTER", *master, launch);
  launch.meetingFile = master->substr(kFile.size());
  return {};
}

// On one host its own name is not used: it may be bound to an address that only looks like another host's.
Status readTorchrun(Launch& launch) {
  TREADLE_RETURN_IF_ERROR(readPlace("RANK", "WORLD_SIZE", launch));
  TREADLE_RETURN_IF_ERROR(readMasterPair("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", launch));
  if (valueOf("LOCAL_WORLD_SIZE") == std::to_string(launch.worldSize)) launch.masterAddress = kThisHost;
  launch.job = "torchrun " + valueOf("TORCHELASTIC_RUN_ID") + " " + valueOf("TORCHELASTIC_RESTART_COUNT") + " " +
               std::to_string(launch.masterPort);
  return {};
}

Status readPlain(Launch& launch) {
  TREADLE_RETURN_IF_ERROR(readPlace("RANK", "WORLD_SIZE", launch));
  return readMasterPair("MASTER_ADDR", "MASTER_PORT", "RANK", launch);
}

Status readElastic(Launch& launch) {
  TREADLE_RETURN_IF_ERROR(readPlace("PET_NODE_RANK", "PET_NNODES", launch));
  if (std::string processes = valueOf("PET_NPROC_PER_NODE"); !processes.empty() && processes != "1")
    return wrong("PET_NPROC_PER_NODE", processes, "1: let torchrun start the program when a node has several workers");
  return readMasterPair("PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NODE_RANK", launch);
}

Status readOpenMpi(Launch& launch) {
  TREADLE_RETURN_IF_ERROR(readPlace("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", launch));
  launch.job =
      "ompi " + valueOf("PMIX_NAMESPACE") + " " + valueOf("OMPI_MCA_ess_base_jobid") + " " + valueOf("MASTER_PORT");
  return findMaster("OMPI_COMM_WORLD_LOCAL_SIZE", "Open MPI", {}, launch);
}

std::string firstHostOfSlurm() {
  return firstHost(base::environment("SLURM_STEP_NODELIST").value_or(valueOf("SLURM_JOB_NODELIST")));
}

// MPICH's launcher starts one process of its own on each node by srun, whose variables its workers inherit. Then those
// of PMI are others, and theirs.
bool isTaskOfSlurm() {
  const bool startedByOther = base::environment("PMI_RANK") && (valueOf("PMI_RANK") != valueOf("SLURM_PROCID") ||
                                                                valueOf("PMI_SIZE") != valueOf("SLURM_NTASKS"));
  return !startedByOther;
}

Status readSlurm(Launch& launch) {
  TREADLE_RETURN_IF_ERROR(readPlace("SLURM_PROCID", "SLURM_NTASKS", launch));
  launch.job = "slurm " + valueOf("SLURM_JOB_ID") + " " + valueOf("SLURM_STEP_ID");
  return findMaster("SLURM_STEP_TASKS_PER_NODE", "Slurm", firstHostOfSlurm(), launch);
}

Status readPmi(Launch& launch) {
  TREADLE_RETURN_IF_ERROR(readPlace("PMI_RANK", "PMI_SIZE", launch));
  launch.job = "pmi " + valueOf("PMI_PORT") + " " + valueOf("MASTER_PORT");
  return findMaster("MPI_LOCALNRANKS", "this launcher", firstHostOfSlurm(), launch);
}

// A launcher is there when any of its `marks` is set, and it has started this process itself.
struct Launcher {
  std::array<const char*, 3> marks;  // unused places are null
  Status (*read)(Launch& launch);
  bool (*startedThis)() = [] { return true; };
};

constexpr std::array<Launcher, 7> kLaunchers = {
    Launcher{{"TREADLE_RANK", "TREADLE_WORLD_SIZE", "TREADLE_MASTER"}, &readTreadleRun},
    Launcher{{"TORCHELASTIC_RUN_ID", nullptr, nullptr}, &readTorchrun},
    Launcher{{"RANK", "WORLD_SIZE", nullptr}, &readPlain},
    Launcher{{"PET_NODE_RANK", nullptr, nullptr}, &readElastic},
    Launcher{{"OMPI_COMM_WORLD_RANK", nullptr, nullptr}, &readOpenMpi},
    Launcher{{"SLURM_STEP_ID", nullptr, nullptr}, &readSlurm, &isTaskOfSlurm},
    Launcher{{"PMI_RANK", nullptr, nullptr}, &readPmi},
};

bool isThere(const Launcher& launcher) {
  for (const char* mark : launcher.marks)
    if (mark != nullptr && base::environment(mark)) return launcher.startedThis();
  return false;
}

}  // namespace

Result<std::optional<Launch>> readLaunchers() {
  for (const Launcher& launcher : kLaunchers) {
    if (!isThere(launcher)) continue;
    Launch launch;
    if (Status status = launcher.read(launch); !status.ok()) return status;
    return std::optional(std::move(launch));
  }
  return std::optional<Launch>();
}

}  // namespace treadle::cluster

#pragma once
// The environment as launchers leave it to a worker (cluster/launch.h), for tests that set it and put it back.

#include <array>
#include <cstdlib>
#include <map>
#include <string>

namespace treadle::test {

// All that any launcher may set and that says where a worker stands in its job. The fuzzer's corpus counts on the
// order.
inline constexpr std::array kLaunchVariables = {
    "TREADLE_RANK",
    "TREADLE_WORLD_SIZE",
    "TREADLE_MASTER",
    "TREADLE_JOB_KEY",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "PET_NODE_RANK",
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "SLURM_PROCID",
    "SLURM_NTASKS",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
    "SLURM_STEP_NODELIST",
    "SLURM_JOB_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE",
    "PMI_RANK",
    "PMI_SIZE",
    "PMI_PORT",
    "MPI_LOCALNRANKS",
    "TREADLE_SERVERS",
};
// What else `treadle run` gives: files and descriptors.
inline constexpr std::array kHandedDown = {"TREADLE_JOB_KEY_FD", "TREADLE_JOB_KEY_FILE", "TREADLE_STATUS_FD"};

// Of all of them exactly what is set here; the old ones again at the end, also those of the launcher that runs the
// test.
class LaunchEnvironment {
 public:
  using Variables = std::map<std::string, std::string>;

  explicit LaunchEnvironment(const Variables& variables = {}) {
    forEach([&](const char* name) {
      if (const char* value = std::getenv(name)) before_[name] = value;
      ::unsetenv(name);
    });
    for (const auto& [name, value] : variables) set(name, value);
  }
  ~LaunchEnvironment() {
    forEach([](const char* name) { ::unsetenv(name); });
    for (const auto& [name, value] : before_) set(name, value);
  }
  LaunchEnvironment(const LaunchEnvironment&) = delete;
  LaunchEnvironment& operator=(const LaunchEnvironment&) = delete;

  void set(const std::string& name, const std::string& value) { ::setenv(name.c_str(), value.c_str(), 1); }

 private:
  template <class F>
  static void forEach(F f) {
    for (const char* name : kLaunchVariables) f(name);
    for (const char* name : kHandedDown) f(name);
  }

  Variables before_;
};

}  // namespace treadle::test

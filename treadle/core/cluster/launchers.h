#pragma once
// The launchers that Launch::detect understands: what each tells a worker by environment variables.
//
//   treadle run        TREADLE_RANK, TREADLE_WORLD_SIZE, TREADLE_MASTER
//   torchrun           TORCHELASTIC_RUN_ID, RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT. Its agent may
//                      listen at MASTER_PORT itself, so that port is never the job's
//   by hand, others    RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT
//   Kubeflow           PET_NODE_RANK, PET_NNODES, PET_MASTER_ADDR, PET_MASTER_PORT, one process per node
//   Open MPI           OMPI_COMM_WORLD_RANK, OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_SIZE
//   Slurm (srun)       SLURM_PROCID, SLURM_NTASKS, SLURM_JOB_ID, SLURM_STEP_ID, SLURM_STEP_NODELIST
//   MPICH, Intel MPI   PMI_RANK, PMI_SIZE, MPI_LOCALNRANKS
//
// The first that is there is believed; their order is that of this list, as mpirun inside of a Slurm job has the
// variables of both; but within one MPICH's are believed where they differ, as its workers have the variables of what
// srun started for it. Those that know no port give a name of the job (Launch::job), and those that know no host need
// MASTER_ADDR unless all workers are on one host.

#include <optional>

#include "treadle/core/cluster/launch.h"

namespace treadle::cluster {

// Without the job's key. Nothing when none is there; FailedPrecondition or InvalidArgument when what it tells is not
// complete or cannot be.
Result<std::optional<Launch>> readLaunchers();

}  // namespace treadle::cluster

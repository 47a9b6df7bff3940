#!/usr/bin/env python3
"""Jobs that other launchers start, for real: torchrun, and mpirun of Open MPI and of MPICH where they are installed.

usage: launchers.py [--build FOLDER] [--all]
"""
import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from free_port import free_port

WORKERS = 3
LIMIT_S = 120
# Each launcher tells a worker its rank in a variable of its own.
NAME = "w${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}}"
OURS = ("TREADLE_", "RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "TORCHELASTIC_", "OMPI_", "PMI", "SLURM_")


def launchers(python):
    """What each is called, and how it begins; without it, why it is left out."""
    torchrun = [python, "-m", "torch.distributed.run", "--no-python", "--nproc-per-node", str(WORKERS)]
    has_torch = importlib.util.find_spec("torch") is not None or python != sys.executable
    # Its agent listens at the master's port itself: ours must be another.
    yield "torchrun, standalone", torchrun + ["--standalone"], has_torch
    yield "torchrun, a port given", torchrun + ["--master-addr", "127.0.0.1", "--master-port", str(free_port())], has_torch
    for name, program, options in (
        ("Open MPI", "mpirun.openmpi", ["--oversubscribe"] + (["--allow-run-as-root"] if os.geteuid() == 0 else [])),
        ("MPICH", "mpiexec.mpich", []),
    ):
        yield name, [program, "-n", str(WORKERS), *options], shutil.which(program) is not None


def run(command, program):
    """What is wrong with a job, one sentence each, and what it wrote."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    with tempfile.TemporaryDirectory(prefix="treadle-launchers-") as folder:
        try:
            job = subprocess.run(command + ["sh", "-c", f"exec '{program}' {NAME}"], cwd=folder, env=environment,
                                 stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LIMIT_S, check=False)
        except subprocess.TimeoutExpired as late:
            return [f"it did not end within {LIMIT_S} s"], f"{late.stdout}{late.stderr}"
    found = [] if job.returncode == 0 else [f"exit code {job.returncode}"]
    found += [f"worker w{rank} did not say that it {what}" for rank in range(WORKERS) for what in ("joined", "done")
              if f"w{rank} {what}" not in job.stdout]
    return found, job.stdout + job.stderr


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/dev", help="the build folder [build/dev]")
    parser.add_argument("--all", action="store_true", default="TREADLE_ALL_LAUNCHERS" in os.environ,
                        help="one that is not installed is a failure [if the variable TREADLE_ALL_LAUNCHERS is there]")
    options = parser.parse_args()
    program = os.path.join(os.path.abspath(options.build), "tests", "join_program")
    failed = 0
    for name, command, there in launchers(os.environ.get("TREADLE_PYTHON", sys.executable)):
        if not there:
            print(f"{'FAILED' if options.all else 'left out'} {name}: it is not installed")
            failed += options.all
            continue
        found, output = run(command, program)
        if found:
            failed += 1
            print(f"FAILED {name}: {'; '.join(found)}\n--- output\n{output}---")
        else:
            print(f"ok {name}")
    print(f"launchers: {'FAILED' if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

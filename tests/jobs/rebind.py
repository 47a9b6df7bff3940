#!/usr/bin/env python3
"""Workers that train together while one of them is killed: the others go on without it, and end with the same parameters.

usage: rebind.py [--build FOLDER]
"""
import argparse
import os
import re
import signal
import sys
import tempfile
import time

from watched_job import Job

WORKERS = 3
LIMIT_S = 200  # ends a hang


def problems(job, victim):
    """What is wrong with an ended job, one sentence each."""
    found = job.leftovers()
    ends = {}
    for _, name, line in job.lines:
        if end := re.fullmatch(r"\[(\d)\] done with (\d) members: (\S+)", line):
            ends[int(end[1])] = (int(end[2]), end[3])
    if set(ends) != set(range(WORKERS)) - {victim} or len(set(ends.values())) != 1:
        found.append(f"the others do not all end with the same parameters, but {ends}")
    elif {members for members, _ in ends.values()} != {WORKERS - 1}:
        found.append(f"the others do not end as {WORKERS - 1} members, but as {ends}")
    last = job.error_lines()[-1] if job.error_lines() else ""
    said = re.search(r"was killed by SIGKILL first; ranks \d and \d ended well$", last)
    if job.launcher.returncode != 128 + signal.SIGKILL or not said:
        found.append(f"exit code {job.launcher.returncode}, and the others did not end well")
    found += [f"'{line}' was said" for _, _, line in job.lines if "rebind_program: " in line]
    return found


def train(build, victim):
    """What is wrong when this rank is killed in the middle of its training."""
    with tempfile.TemporaryDirectory(prefix="treadle-rebind-") as folder:
        command = [os.path.join(build, "bin", "treadle"), "run", "-n", str(WORKERS), "--grace", "60", "--",
                   os.path.join(build, "tests", "rebind_program")]
        job = Job(command, folder)
        deadline = time.monotonic() + LIMIT_S
        try:
            job.wait_for_workers(WORKERS, deadline)
            job.when(rf"^\[{victim}\] step 20$", lambda: job.workers[victim].signal(signal.SIGKILL)).wait(LIMIT_S)
            found = problems(job, victim) if job.finish(deadline) else [job.unfinished(LIMIT_S)]
        finally:
            job.close()
        if found:
            print(f"rank {victim} is killed: {'; '.join(found)}\n--- output\n{job.output()}---")
        return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/dev", help="the build folder [build/dev]")
    build = os.path.abspath(parser.parse_args().build)
    failed = any([train(build, victim) for victim in (0, 1)])
    print(f"rebind: {'FAILED' if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""The small examples as a user starts them: hello prints its sum; each of the others reaches the loss that it states, or says
that its loss fell, and ends with an error that names the worker when one is killed.

usage: examples.py [--build FOLDER]
"""
import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

from watched_job import Job

# Program, workers, the loss that it states, and the worker of rank 1, which all others need.
EXAMPLES = [("two_workers", 2, 0.001, "worker1"),
            ("multi_machine_model", 4, 0.4, "embedding"),
            ("parameter_server", 5, 0.15, "server0")]
# Program, workers, options for a training of a second or two, and the worker of rank 1.
DATA_PARALLEL = [("data_parallel_text", 2, "--layers 2 --width 32 --length 32 --lr 0.005".split(), "worker1"),
                 ("data_parallel_digits", 2, [], "worker1")]
LIMIT_S = 60
ATTEMPTS = 5


def kill_first(job, deadline):
    """Kills rank 1 as soon as there is a line about the training; whether it was still there."""
    while job.launcher.poll() is None and time.monotonic() < deadline:
        if job.first_line("step .* loss "):
            try:
                job.workers[1].signal(signal.SIGKILL)
                return True
            except ProcessLookupError:
                return False
        time.sleep(0.002)
    return False


def run(binaries, folder, name, workers, kill, options=()):
    """An ended job, whether rank 1 was killed, and what is wrong so far, one sentence each."""
    program = [os.path.join(binaries, name), *options]
    job = Job([os.path.join(binaries, "treadle"), "run", "-n", str(workers), "--", *program], folder)
    deadline = time.monotonic() + LIMIT_S
    try:
        job.wait_for_workers(workers, deadline)
        killed = kill and kill_first(job, deadline)
        found = job.leftovers() if job.finish(deadline) else [job.unfinished(LIMIT_S)]
    finally:
        job.close()
    return job, killed, found


def trains(binaries, folder, name, workers, wanted, _):
    job, _, found = run(binaries, folder, name, workers, kill=False)
    said = [line for _, stream, line in job.lines if stream == "out"]
    result = re.fullmatch(rf"\[0\] {name}: loss ([0-9.e-]+), below {wanted}", said[-1] if said else "")
    if job.launcher.returncode != 0:
        found.append(f"exit code {job.launcher.returncode}")
    if not result or not float(result[1]) < wanted:
        found.append(f"the last line does not tell a loss below {wanted}")
    return job, found


def trains_replicas(binaries, folder, name, workers, options, _):
    job, _, found = run(binaries, folder, name, workers, False, options)
    last = [line for _, stream, line in job.lines if stream == "out"][-1:]
    result = re.fullmatch(rf"\[0\] {name}: the loss fell, from (\S+) to (\S+) in \d+ steps, \S+ steps/s", "".join(last))
    if job.launcher.returncode != 0:
        found.append(f"exit code {job.launcher.returncode}")
    if not result or not float(result[2]) < 0.7 * float(result[1]):
        found.append("the last line does not report a loss that fell by three tenths")
    return job, found


def loses_a_replica(binaries, folder, name, workers, options, victim):
    # So many steps that it is not over before the kill.
    return loses_a_worker(binaries, folder, name, workers, None, victim, [*options, "--steps", "100000"])


def loses_a_worker(binaries, folder, name, workers, _, victim, options=()):
    for _ in range(ATTEMPTS):
        job, killed, found = run(binaries, folder, name, workers, True, options)
        if killed and job.launcher.returncode != 0:
            break  # else it was over before the kill
    if job.launcher.returncode != 128 + signal.SIGKILL:
        found.append(f"exit code {job.launcher.returncode} after rank 1 was killed")
    if not any(line.startswith(f"{name}: ") and f"'{victim}'" in line for line in job.error_lines(0)):
        found.append(f"rank 0 does not say that '{victim}' was lost")
    last = job.error_lines()[-1] if job.error_lines() else ""
    if not re.search(r"was killed by SIGKILL first; ranks? .* then ended with exit code 1$", last):
        found.append("the others did not end with exit code 1")
    return job, found


def says_hello(binaries, folder):
    """The README's first program: its whole output."""
    job, _, found = run(binaries, folder, "hello", 2, kill=False)
    said = [line for _, _, line in job.lines]
    if job.launcher.returncode != 0 or said != ["[0] the sum is 12"]:
        found.append(f"exit code {job.launcher.returncode} and not just the sum")
    return job, found


def names_the_launcher_that_is_missing(binaries, _):
    """The same without a launcher; None in place of the job, of which there is none."""
    alone = {name: value for name, value in os.environ.items() if name not in ("TREADLE_RANK", "RANK", "WORLD_SIZE")}
    ended = subprocess.run([os.path.join(binaries, "hello")], env=alone, capture_output=True, text=True, timeout=LIMIT_S)
    found = []
    if ended.returncode != 1 or "treadle run" not in ended.stderr:
        found.append(f"exit code {ended.returncode}, and not how to start it but {ended.stderr!r}")
    return None, found


def report(name, started, job, found):
    if found:
        output = f"\n--- output, seconds since the start\n{job.output()}---" if job else ""
        print(f"FAILED {name}: {'; '.join(found)}{output}")
    else:
        print(f"ok     {name} ({time.monotonic() - started:.1f} s)")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/dev", help="the build folder [build/dev]")
    binaries = os.path.join(os.path.abspath(parser.parse_args().build), "bin")
    cases = [("hello", says_hello, ()), ("hello", names_the_launcher_that_is_missing, ())]
    cases += [(example[0], case, example) for example in EXAMPLES for case in (trains, loses_a_worker)]
    cases += [(example[0], case, example) for example in DATA_PARALLEL for case in (trains_replicas, loses_a_replica)]
    failed = False
    for name, case, arguments in cases:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="treadle-examples-") as folder:
            job, found = case(binaries, folder, *arguments)
        failed = failed or bool(found)
        report(f"{name} {case.__name__}", started, job, found)
    print(f"examples: {'FAILED' if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

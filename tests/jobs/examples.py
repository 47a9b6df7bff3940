#!/usr/bin/env python3
"""The small examples as a user starts them: hello prints its sum; each of the others reaches the loss that it states, or says
that its loss fell, and ends with an error that names the worker when one is killed; char_gpt ends with the validation loss of
one process.

usage: examples.py [--build FOLDER] [--stated]

--stated trains only char_gpt, as its README does, to the validation loss that is stated there: 80 s on two cores of a release.
"""
import argparse
import json
import math
import os
import re
import shlex
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
# A char_gpt that takes seconds: its workers, how far apart its trainings may end, between which both losses lie, and options.
# A model that guesses all 86 characters alike has a loss of log 86 = 4.45.
CHAR_GPT = [(2, 1e-4, (0, 3), ["--quick"]), (2, 1e-10, (0, 3), ["--quick", "--float64"]),
            (3, 1e-10, (0, 3), ["--quick", "--float64"])]
# That of examples/char_gpt/README.md, whose losses are 1.6052: of the licences of Debian 12. Rounding in another order moves them
# by some 1e-5.
STATED = (2, 1e-3, (1.603, 1.607), [])
# Options with which char_gpt does not start, what each worker reports, and the exit code. The text "short" has 200 characters.
REFUSED = [(["--text", "missing"], "missing: cannot be read; name a text with --text", 1),
           (["--text", "short", "--batch", "200"], "the text for the training has 180 characters, and a step needs 216; name a "
            "longer text with --text or a smaller --batch or --length", 1),
           (["--run-folder", "old"], "old: this folder already holds a run (metrics.jsonl); name another with --run-folder", 1),
           (["--width", "30", "--heads", "4"], "--width: 30 is not a multiple of --heads 4 (char_gpt --help lists the "
            "options)", 2)]
LIMIT_S = 300  # ends a hang
ATTEMPTS = 5
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


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


def run(binaries, folder, name, workers, kill, options=(), kept=(), grace=60):
    """An ended job, whether rank 1 was killed, and what is wrong so far, one sentence each. `kept`: what may be left in the
    folder; `grace`: seconds that the others have to end after a failure."""
    program = [os.path.join(binaries, name), *options]
    launcher = [os.path.join(binaries, "treadle"), "run", "-n", str(workers), "--grace", str(grace)]
    job = Job([*launcher, "--", *program], folder)
    deadline = time.monotonic() + LIMIT_S
    try:
        job.wait_for_workers(workers, deadline)
        killed = kill and kill_first(job, deadline)
        found = job.leftovers(kept) if job.finish(deadline) else [job.unfinished(LIMIT_S)]
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


def trains_as_one_process(binaries, folder, workers, limit, between, options):
    """The replicas and one process have the same losses at each step that has a line."""
    least, most = between
    job, _, found = run(binaries, folder, "char_gpt", workers, False, ["--run-folder", "run", *options], ["run"])
    last = [line for _, stream, line in job.lines if stream == "out"][-1:]
    result = re.fullmatch(rf"\[0\] char_gpt: validation loss (\S+) with {workers} workers, (\S+) in one process, "
                          r"difference (\S+); \S+ s and \S+ s", "".join(last))
    if job.launcher.returncode != 0:
        found.append(f"exit code {job.launcher.returncode}")
    if not result or float(result[3]) > limit or not all(least < float(loss) < most for loss in result.groups()[:2]):
        return job, [*found, f"the last line does not report losses between {least} and {most} that differ by {limit} at most"]
    return job, found + checked(curve_problems, folder, f"{workers} workers", limit)


def draws_its_losses(binaries, folder):
    """The command that a run prints draws its picture."""
    job, _, found = run(binaries, folder, "char_gpt", 1, False, ["--quick", "--run-folder", "run"], ["run"])
    return job, found + checked(picture_problems, job, folder)


def checked(check, *arguments):
    """What `check` finds. A file or line that it cannot read is a finding too, so that the next cases run."""
    try:
        return check(*arguments)
    except (OSError, KeyError, TypeError, ValueError, subprocess.TimeoutExpired) as error:
        return [f"{check.__name__}: {error!r}"]


def curve_problems(folder, replicas, limit):
    """metrics.jsonl has the same steps and losses for the training called `replicas` and for one process."""
    with open(os.path.join(folder, "run", "metrics.jsonl"), encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    ours, alone = ([row for row in rows if row["training"] == name] for name in (replicas, "one process"))
    found = []
    if len(ours) != len(alone) or len(ours) < 10:
        found.append(f"metrics.jsonl has {len(ours)} lines of the replicas and {len(alone)} of one process")
    for one, other in zip(ours, alone):
        if one["step"] != other["step"] or not all(
                math.isclose(one[column], other[column], rel_tol=0, abs_tol=limit) for column in ("loss", "validation_loss")):
            found.append(f"metrics.jsonl has {one} and {other}")
    return found


def picture_problems(job, folder):
    said = [line for _, _, line in job.lines if "plot_metrics.py" in line]
    if len(said) != 1:
        return ["it does not say how to draw the losses"]
    _, *command = shlex.split(said[0])
    drawn = subprocess.run(command, cwd=folder, env={**os.environ, "MPLCONFIGDIR": os.path.join(folder, "run")},
                           capture_output=True, text=True, timeout=LIMIT_S)
    if drawn.returncode != 0:
        return [f"the losses are not drawn: {drawn.stderr}"]
    with open(os.path.join(folder, "run", "metrics.png"), "rb") as picture:
        return [] if picture.read(4) == b"\x89PNG" else ["metrics.png is not a picture"]


def refuses(binaries, folder, options, message, code):
    """Each worker reports the same, and leaves no run folder: the corrected command may name it again."""
    with open(os.path.join(folder, "short"), "w", encoding="ascii") as file:
        file.write("abcdefgh" * 25)
    os.mkdir(os.path.join(folder, "old"))
    with open(os.path.join(folder, "old", "metrics.jsonl"), "w", encoding="ascii") as file:
        file.write("{}\n")
    named = [] if "--run-folder" in options else ["--run-folder", "run"]
    job, _, found = run(binaries, folder, "char_gpt", 2, False, ["--quick", *named, *options], ["short", "old"])
    if job.launcher.returncode != code or any(job.error_lines(rank) != [f"char_gpt: {message}"] for rank in range(2)):
        found.append(f"exit code {job.launcher.returncode}, and not one error per worker")
    return job, found


def loses_a_replica(binaries, folder, name, workers, options, victim):
    # So many steps that it is not over before the kill.
    return loses_a_worker(binaries, folder, name, workers, None, victim, [*options, "--steps", "100000"])


def loses_a_worker(binaries, folder, name, workers, _, victim, options=()):
    for _ in range(ATTEMPTS):
        kept = ["runs"] if name == "char_gpt" else []
        job, killed, found = run(binaries, folder, name, workers, True, options, kept)
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
    parser.add_argument("--stated", action="store_true", help="only the training that the README of char_gpt states")
    arguments = parser.parse_args()
    binaries = os.path.join(os.path.abspath(arguments.build), "bin")
    cases = [("hello", says_hello, ()), ("hello", names_the_launcher_that_is_missing, ())]
    cases += [(example[0], case, example) for example in EXAMPLES for case in (trains, loses_a_worker)]
    cases += [(example[0], case, example) for example in DATA_PARALLEL for case in (trains_replicas, loses_a_replica)]
    cases += [("char_gpt", trains_as_one_process, case) for case in CHAR_GPT]
    cases += [("char_gpt", draws_its_losses, ()), ("char_gpt", loses_a_replica, ("char_gpt", 2, ["--quick"], "worker1"))]
    cases += [("char_gpt", refuses, refused) for refused in REFUSED]
    if arguments.stated:
        cases = [("char_gpt", trains_as_one_process, STATED)]
    os.environ.setdefault("TREADLE_PYTHON", os.path.join(ROOT, ".venv", "bin", "python"))  # as make demo sets it
    failed = False
    for name, case, values in cases:
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="treadle-examples-") as folder:
            job, found = case(binaries, folder, *values)
        failed = failed or bool(found)
        report(f"{name} {case.__name__}", started, job, found)
    print(f"examples: {'FAILED' if failed else 'ok'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

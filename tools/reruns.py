"""Tells a failure that counts from a flaky case, for tools/run_tests.py --rerun.

Only a case that reports first that an event did not come in time may be flaky. Anything else counts at once, because a slow
machine does not cause it: a crash, a sanitizer's report, a leak or leftover, a wrong value, a wrong culprit. A late case also
counts at once when its seed is fixed, when its file, or a header of the tests that it includes, has changed since the last
merge, and when it stands in the list of flaky cases.

Every other late case runs again: once with its whole program and ten times alone, beside a copy of what ran beside it. If one
of these runs fails, the failure counts. Otherwise the case is flaky: its output is printed, and it is added to the list
flaky.md in the user's cache folder. Remove the line of a case that you have mended.
"""
import contextlib
import itertools
import os
import re
import subprocess
import threading
import time

from changed import ROOT, cache_folder, changed_files, lines_of
from commands import end

RERUNS = 10
MOST_FLAKY = 2  # one more, and .ci/run fails
# How a script reports a case that failed: a line with the case's name and the reasons, the first one first.
FAILED = re.compile(r"^FAILED (?:[^:\n]+: )?(.*)", re.MULTILINE)
# That an event did not come in time: nothing but that, as the script may quote others.
LATE = re.compile(r"[\w' ]+ did not [\w' ]+ within [\d.]+ s|Command .* timed out after [\d.]+ seconds|timed out")
INCLUDE = re.compile(r'^#include "((?:tests|examples)/[^"]+)"', re.MULTILINE)
CRASHED = "Traceback (most recent call last)"
WAITED_IN_VAIN = re.compile(r"waited in vain: ")  # tests/support/gate.h
NOT_LATE = "it does not say first that an event did not come in time"


class Case:
    """A case that failed: a GoogleTest case, or with an empty `name` a ctest test that is no GoogleTest program."""

    def __init__(self, program, name, file, output, counts_because):
        self.program, self.name, self.file, self.output = program, name, file, output
        self.counts_because = counts_because  # empty: it may be flaky

    def __str__(self):
        return f"{self.program}:{self.name}" if self.name else self.program


def case_of_program(program, name, file, failures, properties):
    """A failed GoogleTest case with its failures in their order and the names of the properties that it recorded."""
    late = "waited_in_vain" in properties and WAITED_IN_VAIN.search(failures[0])
    why = "its seed is fixed" if "fixed_seed" in properties else "" if late else NOT_LATE
    return Case(program, name, file, "\n".join(failures), why)


def case_of_script(name, file, output):
    """A failed ctest test that is no GoogleTest program: late when all of its cases that failed were late first."""
    reasons = [why.split("; ")[0] for why in FAILED.findall(output)]
    late = reasons and all(LATE.fullmatch(reason) for reason in reasons) and CRASHED not in output
    return Case(name, "", file, output, "" if late else NOT_LATE)


def known_flaky():
    return {line.split("|")[1].strip() for line in lines_of("flaky.md") if line.startswith("| ") and line.count("|") > 3}


def add_flaky(case, folder):
    path = os.path.join(cache_folder(), "flaky.md")
    os.makedirs(cache_folder(), exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        if file.tell() == 0:
            file.write("Cases that failed once and then passed ten times. Remove the line of a case that you have mended.\n\n"
                       "| case | build | when | said |\n|---|---|---|---|\n")
        said = " ".join(case.output.split())[:200].replace("|", "/")
        file.write(f"| {case} | {os.path.basename(folder.rstrip('/'))} | {time.strftime('%Y-%m-%d %H:%M')} | {said} |\n")


class Load:
    """Runs commands over and over on a thread, one at a time, as long as the `with` lasts. Their results do not matter, and
    one that hangs is ended at its limit."""

    def __init__(self, commands):
        self.commands, self.stopped, self.process = commands, threading.Event(), None
        self.lock = threading.Lock()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self):
        for command in itertools.cycle(self.commands):
            with self.lock:
                if self.stopped.is_set():
                    return
                self.process = command.start(subprocess.DEVNULL)
            try:
                self.process.wait(command.limit_s)
            except subprocess.TimeoutExpired:
                end(self.process)

    def __enter__(self):
        if self.commands:
            self.thread.start()

    def __exit__(self, *_):
        with self.lock:
            self.stopped.set()
            if self.process:
                end(self.process)
        if self.commands:
            self.thread.join()


def passes(command, case):
    """Runs all of a command, or one case of it: (whether it passed, its output)."""
    process = command.start(subprocess.PIPE, case)
    try:
        output, _ = process.communicate(timeout=command.limit_s)
    except subprocess.TimeoutExpired:
        end(process)
        return False, f"did not end within {command.limit_s} s"
    return process.returncode == 0 and "Running 0 tests" not in output, output


def passes_among_all(command, case):
    """Runs all of a command: (whether this case passed, its output). Other cases may fail, if the program comes to its end."""
    passed, output = passes(command, "")
    return passed or (case and f"[  FAILED  ] {case}" not in output and "FAILED TEST" in output), output


def fails_again(case, commands, beside):
    """The output of the first of eleven more runs that fails; None when all pass."""
    command = commands[case.program]
    others = [commands[program] for program in sorted(beside) if program in commands]
    lanes = max(1, len(os.sched_getaffinity(0)) - 1)  # ctest runs as many tests at once as there are cores, this one among them
    with contextlib.ExitStack() as loads:
        for lane in range(lanes):
            loads.enter_context(Load(others[lane::lanes]))
        # First among all: a case that fails because of those before it passes alone.
        for run in [passes_among_all, *[passes] * RERUNS]:
            passed, output = run(command, case.name)
            if not passed:
                return output
    return None


def headers_of(file):
    """The headers of tests and examples that a file includes, also through others."""
    headers, left = set(), [file]
    while left:
        try:
            with open(os.path.join(ROOT, left.pop()), encoding="utf-8") as text:
                new = set(INCLUDE.findall(text.read())) - headers
        except OSError:
            continue
        headers |= new
        left += new
    return headers


def changed_for(file, changed):
    """The changed file for which the cases in `file` count as changed; None when there is none."""
    return file if file in changed else min(headers_of(file) & changed, default=None)


def find_flaky(folder, commands, failed, beside):
    """The flaky ones among the failed cases. Reports its verdict on each case."""
    known, changed, flaky = known_flaky(), changed_files(), []
    counted = None  # the first case whose failure counts after all: then the others make no difference
    for case in failed:
        if not case.counts_because and (name := changed_for(case.file, changed)):
            case.counts_because = f"{name} has changed"
        if not case.counts_because and str(case) in known:
            case.counts_because = "it stands in the list of flaky cases already"
        if not case.counts_because and (counted or len(flaky) > MOST_FLAKY):
            case.counts_because = f"{counted} has failed again" if counted else f"more than {MOST_FLAKY} others are flaky"
        if case.counts_because:
            print(f"{case} is not run again: {case.counts_because}", flush=True)
        elif (output := fails_again(case, commands, beside[case.program])) is not None:
            print(f"{case} failed again:\n{output}", flush=True)
            counted = case
        else:
            flaky.append(case)
    if flaky:
        print(f"flaky: {len(flaky)}")
    for case in flaky:
        print(f"flaky: {case} failed once and then passed {RERUNS} times:\n{case.output}", flush=True)
        add_flaky(case, folder)
    return flaky

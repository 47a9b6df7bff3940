"""Tells a failure that counts from a flaky case, for tools/run_tests.py --rerun.

One failure is enough, unless the case says that an event did not come in time. Whatever else it says is no matter of time:
a crash, a sanitizer's report, a leak or leftover, a wrong value, a wrong culprit. One failure is also enough for a case with
a fixed seed, for a case in a file that differs from the last commit that passed .ci/run here, and for a case that stands in
the list of flaky cases.

Every other case is run again ten times, and before that once with its whole program, beside a copy of what ran beside it.
When one of these runs fails, the failure counts. Otherwise the case is flaky: its output is printed, and it is added to the
list flaky.md in the user's cache folder. Who mends the case removes its line.
"""
import itertools
import os
import re
import subprocess
import threading
import time

from changed import cache_folder, changed_files, lines_of
from commands import end

RERUNS = 10
LIMIT_S = 300  # ends a run that hangs, and nothing else
# What a test that is no GoogleTest program says of an event that did not come in time.
LATE = re.compile(r"did not end within [\d.]+ s|timed out after [\d.]+ seconds|waited in vain")


class Case:
    """A case that failed: a GoogleTest case, or with an empty `name` a ctest test that is no GoogleTest program."""

    def __init__(self, program, name, file, output, counts_because):
        self.program, self.name, self.file, self.output = program, name, file, output
        self.counts_because = counts_because  # empty: it may be flaky

    def __str__(self):
        return f"{self.program}:{self.name}" if self.name else self.program


def case_of_program(program, name, file, output, properties):
    """A failed GoogleTest case with the names of the properties that it recorded."""
    if "fixed_seed" in properties:
        return Case(program, name, file, output, "its seed is fixed")
    late = "waited_in_vain" in properties
    return Case(program, name, file, output, "" if late else "it does not say that an event did not come in time")


def case_of_script(name, file, output):
    """A failed ctest test that is no GoogleTest program."""
    return Case(name, "", file, output, "" if LATE.search(output) else "it does not say that an event did not come in time")


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
    """Runs commands over and over on a thread, one at a time, as long as the `with` lasts; their results do not matter."""

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
            self.process.wait()

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
        output, _ = process.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        end(process)
        return False, f"did not end within {LIMIT_S} s"
    return process.returncode == 0 and "Running 0 tests" not in output, output


def fails_again(case, commands, beside):
    """The output of the first of eleven more runs that fails; None when all pass."""
    with Load([commands[program] for program in sorted(beside) if program in commands]):
        # The whole program first: a case that fails because of those before it passes alone.
        for name in ["", *[case.name] * RERUNS]:
            passed, output = passes(commands[case.program], name)
            if not passed:
                return output
    return None


def find_flaky(folder, commands, failed, beside):
    """The flaky ones among the failed cases. Says of each case what it was found to be."""
    known, changed, flaky = known_flaky(), changed_files(), []
    for case in failed:
        if not case.counts_because and case.file in changed:
            case.counts_because = f"{case.file} has changed"
        if not case.counts_because and str(case) in known:
            case.counts_because = "it stands in the list of flaky cases already"
        if case.counts_because:
            print(f"{case} is not run again: {case.counts_because}", flush=True)
        elif (output := fails_again(case, commands, beside[case.program])) is not None:
            print(f"{case} failed again:\n{output}", flush=True)
        else:
            flaky.append(case)
    if flaky:
        print(f"flaky: {len(flaky)}")
    for case in flaky:
        print(f"flaky: {case} failed once and then passed {RERUNS} times:\n{case.output}", flush=True)
        add_flaky(case, folder)
    return flaky

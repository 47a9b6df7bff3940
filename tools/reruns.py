"""Tells a failure that counts from a flaky case, for tools/run_tests.py --rerun.

A case that failed is run again ten times, beside a copy of what ran beside it. If it fails once more, its failure counts.
Otherwise it is flaky: its output is printed, and it is added to the list flaky.md in the user's cache folder. Nobody may
live with a flaky case: one that stands in the list already counts as failed, and its line is removed by who mends it.

Some failures count at once, because they are no matter of time: crashes, hangs, sanitizer reports, cases with a fixed seed,
and cases in files that were added or changed since the last commit whose tree passed .ci/run here.
"""
import itertools
import json
import os
import re
import signal
import subprocess
import threading
import time

from changed import cache_folder, changed_files, lines_of

RERUNS = 10
LIMIT_S = 300  # ends a run that hangs, and nothing else
SANITIZER = re.compile(r"ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error: |SUMMARY: \w+Sanitizer")


class Case:
    """A case that failed: a GoogleTest case, or with an empty `name` a ctest test that is no GoogleTest program."""

    def __init__(self, program, name, file, output, fixed_seed):
        self.program, self.name, self.file, self.output = program, name, file, output
        self.counts_because = "its seed is fixed" if fixed_seed else ""

    def __str__(self):
        return f"{self.program}:{self.name}" if self.name else self.program


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


class Command:
    """How ctest starts a test; `name` picks one case of a GoogleTest program."""

    def __init__(self, folder, program, name=""):
        listing = subprocess.run(["ctest", "--test-dir", folder, "-R", f"^{re.escape(program)}$", "--show-only=json-v1"],
                                 capture_output=True, text=True, check=True).stdout
        test = json.loads(listing)["tests"][0]
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        self.environment = {**os.environ, **dict(line.split("=", 1) for line in properties.get("ENVIRONMENT", []))}
        self.folder = properties.get("WORKING_DIRECTORY", folder)
        self.words = [word for word in test["command"] if not word.startswith("--gtest_output")]
        if name:
            self.words.append(f"--gtest_filter={name}")

    def start(self, output):
        return subprocess.Popen(self.words, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output,
                                stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)


def end(process):
    """Ends a process and what it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Load:
    """Runs test programs over and over on a thread, one at a time, as long as the `with` lasts; what comes of them is of no
    interest."""

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


def passes(command):
    """One run: (whether it passed, its output)."""
    process = command.start(subprocess.PIPE)
    try:
        output, _ = process.communicate(timeout=LIMIT_S)
        return process.returncode == 0, output
    except subprocess.TimeoutExpired:
        end(process)
        return False, f"did not end within {LIMIT_S} s"


def fails_again(folder, case, beside):
    """The output of the first of ten more runs that fails; None when all pass."""
    command = Command(folder, case.program, case.name)
    with Load([Command(folder, program) for program in sorted(beside)]):
        for _ in range(RERUNS):
            passed, output = passes(command)
            if not passed:
                return output
    return None


def find_flaky(folder, failed, beside):
    """Those of the failed cases that are flaky, after saying so of each; the others count."""
    known, changed, flaky = known_flaky(), changed_files() or set(), []
    for case in failed:
        if not case.counts_because and case.file in changed:
            case.counts_because = f"{case.file} has changed"
        if not case.counts_because and str(case) in known:
            case.counts_because = "it stands in the list of flaky cases already"
        if case.counts_because:
            print(f"{case} is not run again: {case.counts_because}", flush=True)
        elif (output := fails_again(folder, case, beside[case.program])) is not None:
            print(f"{case} failed again:\n{output}", flush=True)
        else:
            flaky.append(case)
    if flaky:
        print(f"flaky: {len(flaky)}")
    for case in flaky:
        print(f"flaky: {case} failed once and then passed {RERUNS} times:\n{case.output}", flush=True)
        add_flaky(case, folder)
    return flaky

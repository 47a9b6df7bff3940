#!/usr/bin/env python3
"""Runs all tests of a build many times while something else keeps every core busy, and prints each case that failed with
its rate. Goes on where it was interrupted, as long as the tree and the arguments are the same; begins anew after the last
run.

usage: flaky.py BUILD_FOLDER [--runs N] [ctest arguments...]

What failed is kept in BUILD_FOLDER/flaky. The last line is `flaky: ok|FAILED runs=20 cases=N failures=N`.
"""
import argparse
import collections
import hashlib
import json
import os
import subprocess
import sys

import run_tests
from changed import ROOT, git


class Record:
    """What the runs so far have found, in a file that outlives an interruption. `key` says what was run."""

    def __init__(self, folder, key, runs):
        self.folder = os.path.join(folder, "flaky")
        os.makedirs(self.folder, exist_ok=True)
        self.path = os.path.join(self.folder, "record.json")
        self.data = {"key": key, "runs": 0, "cases": 0, "failures": {}}
        try:
            with open(self.path, encoding="utf-8") as file:
                found = json.load(file)
            if found["key"] == key and found["runs"] < runs:
                self.data = found
        except (OSError, ValueError, KeyError):
            pass

    def add(self, cases):
        """The outcome of one more run."""
        self.data["runs"] += 1
        self.data["cases"] = cases.passed + len(cases.failed)
        failures = collections.Counter(self.data["failures"])
        failures.update([str(case) for case in cases.failed] + cases.crashed)
        self.data["failures"] = dict(failures)
        for case in cases.failed:
            name = str(case).replace("/", "_").replace(":", "_")
            with open(os.path.join(self.folder, f"{name}.{self.data['runs']}.txt"), "w", encoding="utf-8") as file:
                file.write(case.output)
        with open(self.path + ".new", "w", encoding="utf-8") as file:
            json.dump(self.data, file)
        os.replace(self.path + ".new", self.path)


class BusyCores:
    """A process for each core that does nothing but compute, as long as the `with` and this process last."""

    WORK = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"

    def __enter__(self):
        self.processes = [subprocess.Popen([sys.executable, "-c", self.WORK]) for _ in os.sched_getaffinity(0)]

    def __exit__(self, *_):
        for process in self.processes:
            process.kill()
            process.wait()


def key_of(arguments):
    """Differs when the files of the tree or the tests to run do."""
    key = hashlib.sha256(" ".join(arguments).encode())
    for words in (["rev-parse", "HEAD^{tree}"], ["diff", "HEAD"]):
        key.update("\n".join(git(*words)).encode())
    for name in git("ls-files", "--others", "--exclude-standard"):
        with open(os.path.join(ROOT, name), "rb") as file:
            key.update(name.encode() + file.read())
    return key.hexdigest()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", help="the build folder")
    parser.add_argument("--runs", type=int, default=20, help="in all [20]")
    options, arguments = parser.parse_known_args()
    record = Record(options.build, key_of(arguments), options.runs)
    if record.data["runs"]:
        print(f"flaky: goes on after {record.data['runs']} runs", flush=True)
    with BusyCores():
        while record.data["runs"] < options.runs:
            run = run_tests.Run(options.build, arguments)
            if run.tests == 0:
                break
            record.add(run.cases)
            names = [str(case) for case in run.cases.failed] + run.cases.crashed
            print(f"flaky: run {record.data['runs']} of {options.runs}: {', '.join(names) or 'all passed'}", flush=True)
    failures = record.data["failures"]
    for name, count in sorted(failures.items(), key=lambda item: -item[1]):
        print(f"  {count:3} of {record.data['runs']}  {name}")
    failed = bool(failures) or not record.data["cases"]
    print(f"flaky: {'FAILED' if failed else 'ok'} runs={record.data['runs']} cases={record.data['cases']} "
          f"failures={sum(failures.values())}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

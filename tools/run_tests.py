#!/usr/bin/env python3
"""Runs the tests of a build folder with ctest and ends with the line `N passed, N failed` (`, N skipped` when some were). Lines
before it name what failed: `failed: CASE: what it said`.

usage: run_tests.py BUILD_FOLDER [--rerun] [ctest arguments...]

GoogleTest programs are counted by their cases, from the reports that they leave in BUILD_FOLDER/test-results; a program
that died, hung or failed outside of a case counts as one failed test more, and every other ctest test as one. Exits with 1
when anything failed and with 2 when no test ran.

--rerun: a case that failed because an event did not come in time is run again ten times beside a copy of what ran beside
it. When all of these runs pass, the case counts as passed, and is reported under the line `flaky: N` and in the list of flaky
cases (tools/reruns.py).
"""
import collections
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import reruns
from commands import commands_of

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
SANITIZER = re.compile(r"ERROR: (Address|Leak)Sanitizer|WARNING: ThreadSanitizer|runtime error: |SUMMARY: \w+Sanitizer")
START = re.compile(r"^\s+Start\s+\d+: (\S+)$")
END = re.compile(r"^\s*\d+/\d+ Test\s+#\d+: (\S+) \.*\s*(.*?)\s*[\d.]+ sec")


class Cases:
    """The cases of one ctest test: numbers, and those that failed."""

    def __init__(self):
        self.passed = self.skipped = 0
        self.failed = []   # reruns.Case
        self.crashed = []  # names of programs that died, hung or failed outside of a case

    def __iadd__(self, other):
        self.passed += other.passed
        self.skipped += other.skipped
        self.crashed += other.crashed
        self.failed += other.failed
        return self


def in_tree(path):
    """The path of a file of this tree from the tree's root."""
    return os.path.relpath(path, ROOT) if path else ""


def cases_of_program(name, folder):
    """The cases of one GoogleTest program, from its report; None when it left none."""
    try:
        root = ElementTree.parse(os.path.join(folder, "test-results", name + ".xml")).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    cases = Cases()
    for case in root.iter("testcase"):
        failures = [failure.text or failure.get("message", "") for failure in case.iter("failure")]
        if failures and not case.get("name"):
            cases.crashed.append(name)  # before the first case or after the last
        elif failures:
            properties = {entry.get("name") for entry in case.iter("property")}
            # The path starts at the build folder, or at the root when a unity file includes the source.
            file = case.get("file", "")
            file = in_tree(os.path.join(folder, file)) if file.startswith("..") else file
            cases.failed.append(reruns.case_of_program(name, f"{case.get('classname')}.{case.get('name')}", file,
                                                       failures, properties))
        elif case.get("result") == "skipped":
            cases.skipped += 1
        elif case.get("status") == "run":
            cases.passed += 1
    return cases


def cases_of_test(test, folder, command, how):
    """`test`: the element of one ctest test in ctest's own report; `how`: what ctest printed of its end."""
    name, status = test.get("name"), test.get("status")
    output = test.findtext("system-out") or ""
    cases = cases_of_program(name, folder)
    if cases is None:
        cases = Cases()
        if status == "run":
            cases.passed = 1
        elif how == "***Not Run":
            cases.crashed.append(name)  # a program that was not built
        elif status in ("disabled", "notrun"):
            cases.skipped = 1
        elif command is None or not command.script():
            cases.crashed.append(name)  # a program without its report
        else:
            cases.failed.append(reruns.case_of_script(name, in_tree(command.script()), output))
    elif status == "fail" and not cases.failed and not cases.crashed:
        cases.crashed.append(name)  # after the report, or by a sanitizer's exit code
    if status == "fail" and (how != "***Failed" or SANITIZER.search(output)):
        for case in cases.failed:
            case.counts_because = "a sanitizer reported" if how == "***Failed" else how.strip("*") or "its end is not known"
    return cases


def run_ctest(folder, names, junit, arguments):
    """Runs ctest over the tests with these names and shows its output: (its exit code, for each test how it ended, for each
    test those beside it)."""
    # The whole output: a sanitizer's report stands at its end.
    command = ["ctest", "--test-dir", folder, "--output-on-failure", "--test-output-size-failed", "100000000",
               "--output-junit", junit, "--no-tests=error", *arguments]
    running, ends, beside = set(), {}, collections.defaultdict(set)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace") as ctest:
        for line in ctest.stdout:
            print(line, end="", flush=True)
            if (found := START.match(line)) and found[1] in names:  # else a test that runs ctest printed it
                for other in running:
                    beside[other].add(found[1])
                    beside[found[1]].add(other)
                running.add(found[1])
            elif found := END.match(line):
                running.discard(found[1])
                ends[found[1]] = found[2]
    return ctest.returncode, ends, beside


class Run:
    """What one run of the tests gave."""

    def __init__(self, folder, arguments):
        junit = os.path.abspath(os.path.join(folder, "ctest.xml"))
        shutil.rmtree(os.path.join(folder, "test-results"), ignore_errors=True)
        os.makedirs(os.path.join(folder, "test-results"))
        if os.path.exists(junit):
            os.remove(junit)
        self.commands = commands_of(folder)
        self.code, ends, self.beside = run_ctest(folder, self.commands, junit, arguments)
        self.cases, self.tests = Cases(), 0  # `tests`: how many ctest tests ran
        if not os.path.exists(junit):
            print("ctest left no report: no test ran.")
            return
        for test in ElementTree.parse(junit).getroot().iter("testcase"):
            name = test.get("name")
            self.tests += 1
            self.cases += cases_of_test(test, folder, self.commands.get(name), ends.get(name, ""))


def main(folder, *arguments):
    rerun = "--rerun" in arguments
    run = Run(folder, [argument for argument in arguments if argument != "--rerun"])
    total, flaky = run.cases, []
    if rerun and total.failed:
        flaky = reruns.find_flaky(folder, run.commands, total.failed, run.beside)
        total.passed += len(flaky)
        total.failed = [case for case in total.failed if case not in flaky]
    for case in total.failed:
        print(f"failed: {case}: {' '.join(case.output.split())[:300]}")
    for program in total.crashed:
        print(f"failed: {program}: it died, hung or failed outside of its cases")
    failed = len(total.failed) + len(total.crashed)
    print(f"{total.passed} passed, {failed} failed" + (f", {total.skipped} skipped" if total.skipped else ""), flush=True)
    return 2 if run.tests == 0 else 1 if failed or (run.code and not flaky) else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))

#!/usr/bin/env python3
"""Runs the tests of a build folder with ctest and ends with the line `N passed, N failed` (`, N skipped` when some were).

usage: run_tests.py BUILD_FOLDER [--rerun] [ctest arguments...]

GoogleTest programs are counted by their cases, from the reports that they leave in BUILD_FOLDER/test-results; a program
that died, hung or failed outside of a case counts as one failed test more, and every other ctest test as one. Exits with 1
when anything failed and with 2 when no test ran.

--rerun: a case that failed is run again ten times beside a copy of what ran beside it. When all ten pass it counts as
passed, and is reported under the line `flaky: N` and in the list of flaky cases (tools/reruns.py says which cases count at
once).
"""
import collections
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import reruns

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


def cases_of_program(name, folder):
    """The cases of one GoogleTest program, from its report; None when it left none."""
    try:
        root = ElementTree.parse(os.path.join(folder, "test-results", name + ".xml")).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    cases = Cases()
    for case in root.iter("testcase"):
        failures = [failure.text or failure.get("message", "") for failure in case.iter("failure")]
        if failures:
            cases.failed.append(reruns.Case(name, f"{case.get('classname')}.{case.get('name')}", case.get("file", ""),
                                            "\n".join(failures), case.find(".//property[@name='fixed_seed']") is not None))
        elif case.get("result") == "skipped":
            cases.skipped += 1
        elif case.get("status") == "run":
            cases.passed += 1
    return cases


def cases_of_test(test, folder, how):
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
        elif os.path.exists(os.path.join(folder, "tests", name)):
            cases.crashed.append(name)  # a program without its report
        else:
            cases.failed.append(reruns.Case(name, "", f"tests/jobs/{name}.py", output, False))
    elif status == "fail" and not cases.failed:
        cases.crashed.append(name)  # after the report, or by a sanitizer's exit code
    if status == "fail" and (how != "***Failed" or reruns.SANITIZER.search(output)):
        for case in cases.failed:
            case.counts_because = how.strip("*") if how != "***Failed" else "a sanitizer reported"
    return cases


def run_ctest(folder, junit, arguments):
    """Runs ctest and shows its output: (its exit code, for each test how it ended, for each test those beside it)."""
    command = ["ctest", "--test-dir", folder, "--output-on-failure", "--output-junit", junit, "--no-tests=error", *arguments]
    running, ends, beside = set(), {}, collections.defaultdict(set)
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace") as ctest:
        for line in ctest.stdout:
            print(line, end="", flush=True)
            if found := START.match(line):
                for other in running:
                    beside[other].add(found[1])
                    beside[found[1]].add(other)
                running.add(found[1])
            elif found := END.match(line):
                running.discard(found[1])
                ends[found[1]] = found[2]
    return ctest.returncode, ends, beside


def run(folder, arguments):
    """Runs the tests once: (all cases, how many ctest tests ran, ctest's exit code, for each test those beside it)."""
    junit = os.path.abspath(os.path.join(folder, "ctest.xml"))
    shutil.rmtree(os.path.join(folder, "test-results"), ignore_errors=True)
    os.makedirs(os.path.join(folder, "test-results"))
    if os.path.exists(junit):
        os.remove(junit)
    code, ends, beside = run_ctest(folder, junit, arguments)
    total, ran = Cases(), 0
    if not os.path.exists(junit):
        print("ctest left no report: no test ran.")
        return total, ran, code or 2, beside
    for test in ElementTree.parse(junit).getroot().iter("testcase"):
        ran += 1
        total += cases_of_test(test, folder, ends.get(test.get("name"), ""))
    return total, ran, code, beside


def main(folder, *arguments):
    rerun = "--rerun" in arguments
    total, ran, code, beside = run(folder, [argument for argument in arguments if argument != "--rerun"])
    if rerun and total.failed:
        flaky = reruns.find_flaky(folder, total.failed, beside)
        total.passed += len(flaky)
        total.failed = [case for case in total.failed if case not in flaky]
    failed = len(total.failed) + len(total.crashed)
    print(f"{total.passed} passed, {failed} failed" + (f", {total.skipped} skipped" if total.skipped else ""), flush=True)
    return 2 if ran == 0 else 1 if failed or (code and not rerun) else 0


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))

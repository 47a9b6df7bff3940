#!/usr/bin/env python3
"""Runs the tests of a build folder with ctest and ends with the line `N passed, N failed` (`, N skipped` when some were).

usage: run_tests.py BUILD_FOLDER [ctest arguments...]

GoogleTest programs are counted by their cases, from the reports that they leave in BUILD_FOLDER/test-results; a program
that died, hung or failed outside of a case counts as one failed test more, and every other ctest test as one. Exits with 1
when anything failed and with 2 when no test ran.
"""
import os
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree


def count_program(name, folder):
    """Cases (passed, failed, skipped) from the report of one GoogleTest program, or None when it left none."""
    path = os.path.join(folder, "test-results", name + ".xml")
    try:
        root = ElementTree.parse(path).getroot()
    except (OSError, ElementTree.ParseError):
        return None
    passed = failed = skipped = 0
    for case in root.iter("testcase"):
        if case.find("failure") is not None:
            failed += 1
        elif case.get("result") == "skipped":
            skipped += 1
        elif case.get("status") == "run":
            passed += 1
    return passed, failed, skipped


def count(folder, junit):
    totals, ran = [0, 0, 0], 0
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        ran += 1
        state = {"run": 0, "disabled": 2, "notrun": 2}.get(case.get("status"), 1)
        counts = count_program(case.get("name"), folder)
        if counts is None:
            totals[state] += 1
            continue
        totals = [a + b for a, b in zip(totals, counts)]
        # ctest saw a failure that no case accounts for: a crash after the report, a sanitizer's exit code, a time-out.
        if state == 1 and counts[1] == 0:
            totals[1] += 1
    return totals, ran


def main(folder, *arguments):
    junit = os.path.abspath(os.path.join(folder, "ctest.xml"))
    shutil.rmtree(os.path.join(folder, "test-results"), ignore_errors=True)
    os.makedirs(os.path.join(folder, "test-results"))
    if os.path.exists(junit):
        os.remove(junit)
    code = subprocess.call(
        ["ctest", "--test-dir", folder, "--output-on-failure", "--output-junit", junit, "--no-tests=error", *arguments],
        stdin=subprocess.DEVNULL)
    if not os.path.exists(junit):
        print("ctest left no report: no test ran.")
        return code or 2
    (passed, failed, skipped), ran = count(folder, junit)
    print(f"{passed} passed, {failed} failed" + (f", {skipped} skipped" if skipped else ""), flush=True)
    return code or (2 if ran == 0 else 1 if failed else 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))

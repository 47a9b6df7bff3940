#!/usr/bin/env python3
"""Cases broken on purpose, each of which tools/run_tests.py --rerun has to report by name: broken_program.cc has them."""
import argparse
import os
import subprocess
import sys
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
OPTIONS = None  # of the command line


class Reruns(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="treadle-reruns-")
        self.addCleanup(self.folder.cleanup)
        os.mkdir(os.path.join(self.folder.name, "tests"))
        os.symlink(OPTIONS.program, os.path.join(self.folder.name, "tests", "broken"))

    def run_case(self, case, limit_s=60):
        """One run of all tests, which are this one case: (its exit code, its output)."""
        report = os.path.join(self.folder.name, "test-results", "broken.xml")
        with open(os.path.join(self.folder.name, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
            file.write(f'add_test(broken "{OPTIONS.program}" "--gtest_filter=Broken.{case}" "--gtest_output=xml:{report}")\n'
                       f'set_tests_properties(broken PROPERTIES TIMEOUT {limit_s} ENVIRONMENT '
                       f'"BROKEN_STATE={self.folder.name}/state")\n')
        environment = {**os.environ, "XDG_CACHE_HOME": os.path.join(self.folder.name, "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
        ran = subprocess.run([sys.executable, os.path.join(ROOT, "tools", "run_tests.py"), self.folder.name, "--rerun"],
                             cwd=self.folder.name, env=environment, capture_output=True, text=True, check=False)
        return ran.returncode, ran.stdout + ran.stderr

    def expect_counts(self, case, *words, limit_s=60):
        code, output = self.run_case(case, limit_s)
        self.assertEqual(1, code, output)
        self.assertIn(" passed, 1 failed", output)
        for word in words:
            self.assertIn(word, output)

    def test_failing_the_first_time_only_is_flaky_and_counts_the_second_time(self):
        code, output = self.run_case("failsTheFirstTimeOnly")
        self.assertEqual(0, code, output)
        for line in ("\nflaky: 1\n", "flaky: broken:Broken.failsTheFirstTimeOnly", "the first time", "\n1 passed, 0 failed\n"):
            self.assertIn(line, output)
        with open(os.path.join(self.folder.name, "cache", "treadle", "flaky.md"), encoding="utf-8") as file:
            self.assertIn("| broken:Broken.failsTheFirstTimeOnly |", file.read())
        os.remove(os.path.join(self.folder.name, "state"))
        self.expect_counts("failsTheFirstTimeOnly", "stands in the list of flaky cases")

    def test_a_wrong_value_one_time_in_two_counts(self):
        with open(os.path.join(self.folder.name, "state"), "w", encoding="utf-8") as file:
            file.write("1")
        self.expect_counts("hasAWrongValueOneTimeInTwo", "Broken.hasAWrongValueOneTimeInTwo failed again")

    def test_a_fixed_seed_counts_at_once(self):
        self.expect_counts("failsOnceWithAFixedSeed", "Broken.failsOnceWithAFixedSeed is not run again: its seed is fixed")

    def test_an_event_that_never_comes_counts_at_once(self):
        self.expect_counts("waitsForAnEventThatNeverComes", "Timeout", "Broken.waitsForAnEventThatNeverComes", limit_s=5)

    def test_a_crash_counts_at_once(self):
        self.expect_counts("crashesOnce", "Broken.crashesOnce")

    def test_a_leak_counts_at_once(self):
        if "address" not in OPTIONS.sanitizer:
            self.skipTest("the address sanitizer sees leaks")
        self.expect_counts("leaksOnce", "LeakSanitizer", "Broken.leaksOnce")

    def test_a_race_counts_at_once(self):
        if "thread" not in OPTIONS.sanitizer:
            self.skipTest("the thread sanitizer sees races")
        self.expect_counts("racesOnce", "ThreadSanitizer: data race", "Broken.racesOnce")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, help="the built broken_program")
    parser.add_argument("--sanitizer", default="", help="what it was built with")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])

#!/usr/bin/env python3
"""Cases broken on purpose, each of which tools/run_tests.py --rerun has to report by name: broken_program.cc has them."""
import argparse
import os
import sys
import textwrap
import unittest

from own_tree import OwnTree

OPTIONS = None  # of the command line


class Reruns(OwnTree):
    def setUp(self):
        super().setUp()
        self.commit("more")  # the files of the first count as changed

    def run_tests(self, tests, limit_s=60):
        """One run of all tests, which are these commands by name, at once: (its exit code, its output)."""
        self.write_tests(tests, limit_s)
        return self.run_in_tree(sys.executable, "tools/run_tests.py", self.build, "--rerun", f"-j{len(tests)}")

    def run_case(self, case, limit_s=60):
        report = os.path.join(self.build, "test-results", "broken.xml")
        pattern = case if "." in case else f"Broken.{case}"
        return self.run_tests({"broken": [OPTIONS.program, f"--gtest_filter={pattern}", f"--gtest_output=xml:{report}"]},
                              limit_s)

    def run_script(self, text):
        return self.run_tests({"script": self.script("script", text)})

    def expect_counts(self, outcome, *words):
        code, output = outcome
        self.assertEqual(1, code, output)
        self.assertRegex(output, r"\n[01] passed, 1 failed")
        for word in words:
            self.assertIn(word, output)

    def expect_flaky(self, outcome, *words):
        code, output = outcome
        self.assertEqual(0, code, output)
        for word in ("\nflaky: 1\n", "\n1 passed, 0 failed\n", *words):
            self.assertIn(word, output)

    def test_an_event_that_comes_too_late_once_is_flaky_and_counts_the_second_time(self):
        self.expect_flaky(self.run_case("isLateTheFirstTimeOnly"), "flaky: broken:Broken.isLateTheFirstTimeOnly",
                          "it did not become true")
        with open(os.path.join(self.cache, "flaky.md"), encoding="utf-8") as file:
            self.assertIn("| broken:Broken.isLateTheFirstTimeOnly |", file.read())
        os.remove(os.path.join(self.folder.name, "state"))
        self.expect_counts(self.run_case("isLateTheFirstTimeOnly"), "stands in the list of flaky cases")

    def test_an_event_that_comes_too_late_twice_counts(self):
        self.expect_counts(self.run_case("isLateTheFirstTwoTimes"), "Broken.isLateTheFirstTwoTimes failed again",
                           "\nfailed: broken:Broken.isLateTheFirstTwoTimes: ")

    def test_a_case_in_a_changed_file_counts_at_once(self):
        program = os.path.join("tests", "checks", "broken_program.cc")
        with open(os.path.join(self.tree, program), "a", encoding="utf-8") as file:
            file.write("// changed\n")
        self.expect_counts(self.run_case("isLateTheFirstTimeOnly"), f"is not run again: {program} has changed")

    def test_a_case_in_a_file_that_includes_a_changed_header_counts_at_once(self):
        program = os.path.join("tests", "checks", "broken_program.cc")
        with open(os.path.join(self.tree, program), "a", encoding="utf-8") as file:
            file.write('#include "tests/checks/of_the_program.h"\n')
        self.write(os.path.join("tests", "checks", "of_the_program.h"), '#include "tests/checks/deep.h"\n')
        self.commit("headers")
        self.commit("more")
        header = os.path.join("tests", "checks", "deep.h")
        self.write(header, "// new\n")
        self.expect_counts(self.run_case("isLateTheFirstTimeOnly"), f"is not run again: {header} has changed")

    def test_a_changed_header_that_the_file_does_not_include_makes_no_difference(self):
        self.write(os.path.join("tests", "checks", "of_another_program.h"), "// new\n")
        self.expect_flaky(self.run_case("isLateTheFirstTimeOnly"))

    def test_a_case_that_fails_after_others_only_counts(self):
        self.expect_counts(self.run_case("dependsOnOrder*"), "Broken.dependsOnOrderSecondHalf failed again")

    def test_a_failure_outside_of_the_cases_counts_at_once(self):
        self.expect_counts(self.run_case("FailsOutsideOfItsCases.*"), "after the last case",
                           "\nfailed: broken: it died, hung or failed outside of its cases\n")

    def test_a_wrong_value_one_time_in_two_counts_at_once(self):
        with open(os.path.join(self.folder.name, "state"), "w", encoding="utf-8") as file:
            file.write("1")
        self.expect_counts(self.run_case("hasAWrongValueOneTimeInTwo"), "Broken.hasAWrongValueOneTimeInTwo is not run again")

    def test_a_wrong_value_before_a_wait_in_vain_counts_at_once(self):
        self.expect_counts(self.run_case("hasAWrongValueBeforeItIsLate"), "Broken.hasAWrongValueBeforeItIsLate is not run again")

    def test_a_fixed_seed_counts_at_once(self):
        self.expect_counts(self.run_case("isLateOnceWithAFixedSeed"),
                           "Broken.isLateOnceWithAFixedSeed is not run again: its seed is fixed")

    def test_an_event_that_never_comes_counts_at_once(self):
        self.expect_counts(self.run_case("waitsForAnEventThatNeverComes", limit_s=5), "Timeout",
                           "Broken.waitsForAnEventThatNeverComes")

    def test_a_script_that_is_late_once_is_flaky(self):
        self.expect_flaky(self.run_script("""
            import os, sys
            if not os.path.exists(os.environ["BROKEN_STATE"]):
                open(os.environ["BROKEN_STATE"], "w").close()
                sys.exit("FAILED the job: it did not end within 60 s; exit code None")
            """), "flaky: script failed once")

    def test_each_rerun_is_beside_a_copy_of_what_ran_beside(self):
        lock = "import fcntl, os, sys, time\nfile = open(os.environ['BROKEN_STATE'] + '.lock', 'w')\n"
        # It holds the lock until the other program has seen that: then that program makes the file of its state.
        beside = self.script("beside", lock + textwrap.dedent("""
            fcntl.flock(file, fcntl.LOCK_EX)
            deadline = time.monotonic() + 50
            while not os.path.exists(os.environ["BROKEN_STATE"]) and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.2)
            """))
        late = self.script("late", lock + textwrap.dedent("""
            def somebody_has_it():
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    fcntl.flock(file, fcntl.LOCK_UN)
                except BlockingIOError:
                    return True

            deadline = time.monotonic() + 50
            while not somebody_has_it():
                time.sleep(0.001)
                if time.monotonic() > deadline:
                    sys.exit("FAILED late: the program beside it did not run within 50 s")
            if not os.path.exists(os.environ["BROKEN_STATE"]):
                open(os.environ["BROKEN_STATE"], "w").close()
                sys.exit("FAILED late: it did not end within 50 s")
            """))
        code, output = self.run_tests({"late": late, "beside": beside})
        self.assertEqual(0, code, output)
        self.assertIn("\nflaky: 1\n", output)
        self.assertIn("\n2 passed, 0 failed\n", output)

    def test_a_script_that_found_something_wrong_counts_at_once(self):
        for said in ("left over: a segment of shared memory",
                     "FAILED the job: exit code 1; it did not end within 60 s",
                     "FAILED the job: expected 'done', got: it did not end within 60 s",
                     "FAILED one: it did not end within 60 s\nFAILED other: exit code 1",
                     "FAILED one: it did not end within 60 s\nTraceback (most recent call last)"):
            with self.subTest(said):
                self.expect_counts(self.run_script(f"import sys; sys.exit({said!r})"), "script is not run again")

    def test_a_script_with_several_late_cases_is_flaky(self):
        self.expect_flaky(self.run_script("""
            import os, sys
            if not os.path.exists(os.environ["BROKEN_STATE"]):
                open(os.environ["BROKEN_STATE"], "w").close()
                sys.exit("FAILED one: it did not end within 60 s\\nok two\\nFAILED three: timed out")
            """), "flaky: script failed once")

    def test_a_crash_counts_at_once(self):
        self.expect_counts(self.run_case("crashesOnce"), "Broken.crashesOnce")

    def test_a_leak_counts_at_once(self):
        if "address" not in OPTIONS.sanitizer:
            self.skipTest("the address sanitizer sees leaks")
        self.expect_counts(self.run_case("leaksOnce"), "LeakSanitizer", "Broken.leaksOnce")

    def test_a_race_counts_at_once(self):
        if "thread" not in OPTIONS.sanitizer:
            self.skipTest("the thread sanitizer sees races")
        self.expect_counts(self.run_case("racesOnce"), "ThreadSanitizer: data race", "Broken.racesOnce")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", required=True, type=os.path.abspath, help="the built broken_program")
    parser.add_argument("--sanitizer", default="", help="what it was built with")
    OPTIONS, rest = parser.parse_known_args()
    unittest.main(argv=[sys.argv[0], *rest])

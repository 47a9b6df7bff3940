#!/usr/bin/env python3
"""Tests scripts/stages.sh, scripts/green.sh, tools/changed.py and tools/flaky.py, which decide about a change or prepare it.
Each test runs them in a tree of its own."""
import os
import signal
import subprocess
import sys
import time
import unittest

from own_tree import OwnTree

HANGS_S = 60  # far above what anything takes: a limit of so long ends a hang


class Stages(OwnTree):
    def run_stages(self, *stages):
        """One check whose stages print these words; one that names a failed case fails."""
        lines = [f"runStage 'stage {number}' 1 {HANGS_S} bash -c \"printf '{said}\\n'; exit {int('failed: ' in said)}\""
                 for number, said in enumerate(stages)]
        return self.run_in_tree("bash", "-c", "\n".join([". scripts/stages.sh", *lines, "finishStages 1"]))

    def test_two_flaky_cases_pass(self):
        code, output = self.run_stages("flaky: 1", "flaky: 1")
        self.assertEqual(0, code, output)
        self.assertTrue(output.endswith("\n2 passed, 0 failed\n"), output)

    def test_more_than_two_flaky_cases_fail_the_check(self):
        code, output = self.run_stages("flaky: 2", "9 passed, 0 failed", "flaky: 1")
        self.assertEqual(1, code, output)
        self.assertIn("3 cases are flaky", output)
        self.assertTrue(output.endswith("\n11 passed, 1 failed\n"), output)

    def test_cases_that_failed_are_named_at_the_end(self):
        code, output = self.run_stages("failed: a_test:A.b: it is late\\n8 passed, 1 failed", "flaky: 1",
                                       "failed: b_test: it died\\n7 passed, 1 failed")
        self.assertEqual(1, code, output)
        self.assertTrue(output.endswith("\n\nstage 0: a_test:A.b: it is late\nstage 2: b_test: it died\n16 passed, 2 failed\n"),
                        output)


class Green(OwnTree):
    def green(self):
        return self.run_in_tree("bash", "scripts/green.sh")

    def test_a_tree_is_green_once_it_has_passed_and_until_it_changes(self):
        self.assertEqual((1, "green: no: .ci/run has not passed on this tree here\n"), self.green())
        self.remember("green", self.git("rev-parse", "HEAD^{tree}") + "\n")
        self.assertEqual((0, "green: yes\n"), self.green())
        self.write("new", "")
        self.assertEqual((1, "green: no: there are changes that are not committed\n"), self.green())
        self.commit("more")
        self.assertEqual((1, "green: no: .ci/run has not passed on this tree here\n"), self.green())

    def test_a_commit_with_the_same_tree_is_green_too(self):
        self.remember("green", self.git("rev-parse", "HEAD^{tree}") + "\n")
        self.commit("nothing")
        self.assertEqual((0, "green: yes\n"), self.green())

    def test_flaky_cases_are_listed(self):
        self.remember("flaky.md", "Cases that failed once.\n\n| case | build | when | said |\n|---|---|---|---|\n"
                                  "| a_test:A.b | dev | today | waited in vain: 0 of 1 |\n")
        code, output = self.green()
        self.assertEqual(1, code)
        self.assertEqual("flaky: | a_test:A.b | dev | today | waited in vain: 0 of 1 |", output.splitlines()[0])

    def test_a_repository_without_a_commit_is_not_green(self):
        self.git("update-ref", "-d", "HEAD")
        self.assertEqual((2, ""), self.green())


class Changed(OwnTree):
    def changed(self):
        code, output = self.run_in_tree(sys.executable, "tools/changed.py")
        self.assertEqual(0, code, output)
        return output.split()

    def commit_files(self, *names):
        """A commit for each."""
        for name in names:
            self.write(name, "")
            self.commit(name)

    def test_without_a_list_of_green_trees_main_has_changed_since_the_commit_before_it(self):
        self.commit_files("first", "second")
        self.write("first", "changed")
        self.write("third", "")
        self.assertEqual(["first", "second", "third"], self.changed())

    def test_without_that_list_all_is_new_in_the_first_commit(self):
        self.assertIn("tools/changed.py", self.changed())

    def test_main_has_changed_since_its_newest_green_tree(self):
        self.commit_files("first")
        self.remember("green", self.git("rev-parse", "HEAD^{tree}") + "\n")
        self.commit_files("second", "third")
        self.assertEqual(["second", "third"], self.changed())

    def test_a_branch_has_changed_since_it_left_main(self):
        self.commit_files("first")
        self.git("checkout", "-q", "-b", "branch")
        self.commit_files("second", "third")
        self.assertEqual(["second", "third"], self.changed())


class Flaky(OwnTree):
    def command(self, *arguments):
        return [sys.executable, os.path.join(self.tree, "tools", "flaky.py"), self.build, *arguments]

    def interrupt(self):
        """Begins three runs of a test that passes, and ends all in the second run: there the test waits for its end."""
        self.write_tests({"passes": self.script("passes", """
            import os, time
            with open(os.environ["BROKEN_STATE"], "a+") as state:
                print("run", file=state, flush=True)
                state.seek(0)
                if len(state.readlines()) == 2:
                    time.sleep(60)
            """)})
        state = os.path.join(self.folder.name, "state")
        with open(state, "w", encoding="utf-8"):
            pass
        flaky = subprocess.Popen(self.command("--runs", "3"), cwd=self.tree, env=self.environment, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, start_new_session=True)
        with flaky:
            try:
                deadline = time.monotonic() + HANGS_S
                while os.path.getsize(state) < len("run\nrun\n") and time.monotonic() < deadline:
                    time.sleep(0.01)
            finally:
                os.killpg(flaky.pid, signal.SIGKILL)
        self.assertEqual(len("run\nrun\n"), os.path.getsize(state), f"the second run did not begin within {HANGS_S} s")

    def test_goes_on_where_it_was_interrupted(self):
        self.interrupt()
        code, output = self.run_in_tree(*self.command("--runs", "3"))
        self.assertEqual(0, code, output)
        self.assertIn("flaky: goes on after 1 runs\n", output)
        self.assertNotIn("flaky: run 1 of 3", output)
        self.assertTrue(output.endswith("\nflaky: ok runs=3 cases=1 failures=0\n"), output)

    def test_begins_anew_after_its_last_run(self):
        self.write_tests({"passes": ["true"]})
        for _ in range(2):
            code, output = self.run_in_tree(*self.command("--runs", "1"))
            self.assertEqual(0, code, output)
            self.assertIn("flaky: run 1 of 1", output)

    def test_begins_anew_on_another_tree_and_with_other_arguments(self):
        self.interrupt()
        code, output = self.run_in_tree(*self.command("--runs", "3", "-R", "passes"))
        self.assertNotIn("goes on", output)
        self.assertIn("flaky: run 1 of 3", output)
        self.assertEqual(0, code, output)
        self.interrupt()
        self.write("new", "")
        code, output = self.run_in_tree(*self.command("--runs", "3"))
        self.assertNotIn("goes on", output)
        self.assertIn("flaky: run 1 of 3", output)
        self.assertEqual(0, code, output)

    def test_is_never_ok_without_a_case(self):
        skipped = {"skipped": ["sh", "-c", "exit 77"]}
        for tests in ({}, skipped):
            with self.subTest(tests):
                self.write_tests(tests)
                if tests:
                    with open(os.path.join(self.build, "CTestTestfile.cmake"), "a", encoding="utf-8") as file:
                        file.write("set_tests_properties(skipped PROPERTIES SKIP_RETURN_CODE 77)\n")
                code, output = self.run_in_tree(*self.command("--runs", "1"))
                self.assertEqual(1, code, output)
                self.assertRegex(output, r"\nflaky: FAILED runs=[01] cases=0 failures=0\n$")

    def test_reports_each_case_that_failed_with_its_rate(self):
        self.write_tests({"passes": ["true"], "fails": self.script("fails", "import sys; sys.exit(1)")})
        code, output = self.run_in_tree(*self.command("--runs", "2"))
        self.assertEqual(1, code, output)
        self.assertIn("    2 of 2  fails\n", output)
        self.assertTrue(output.endswith("\nflaky: FAILED runs=2 cases=2 failures=2\n"), output)


if __name__ == "__main__":
    unittest.main()

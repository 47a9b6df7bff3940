"""Gives each test of the checks the tools and scripts in a repository, a build folder and a cache of its own."""
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
HANGS_S = 240  # far above what a command takes: a limit of so long ends a hang. The tests as a whole have 300 s.


class OwnTree(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory(prefix="treadle-checks-")
        self.addCleanup(self.folder.cleanup)
        self.tree = os.path.join(self.folder.name, "tree")
        for part in ("tools", "scripts", os.path.join("tests", "checks")):
            shutil.copytree(os.path.join(ROOT, part), os.path.join(self.tree, part),
                            ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(os.path.join(ROOT, ".gitignore"), self.tree)
        self.build = os.path.join(self.tree, "build", "checked")
        os.makedirs(self.build)
        self.cache = os.path.join(self.folder.name, "cache", "treadle")
        os.makedirs(self.cache)
        # No setting of this machine's git may matter: neither a file's nor the repository of a hook that runs this test.
        self.environment = {**{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
                            "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
                            "XDG_CACHE_HOME": os.path.dirname(self.cache), "PYTHONDONTWRITEBYTECODE": "1"}
        self.git("init", "-q", "-b", "main")
        self.commit("all")

    def git(self, *words):
        git = ["git", "-C", self.tree, "-c", "user.name=nobody", "-c", "user.email=nobody@localhost", *words]
        return subprocess.run(git, env=self.environment, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()

    def commit(self, message):
        self.git("add", ".")
        self.git("commit", "-q", "--allow-empty", "-m", message)

    def write(self, name, text):
        """A file of the tree."""
        with open(os.path.join(self.tree, name), "w", encoding="utf-8") as file:
            file.write(text)

    def remember(self, name, text):
        """A file of the cache."""
        with open(os.path.join(self.cache, name), "w", encoding="utf-8") as file:
            file.write(text)

    def run_in_tree(self, *command):
        """The exit code and the output of a command."""
        with subprocess.Popen(command, cwd=self.tree, env=self.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, start_new_session=True) as process:
            try:
                output, _ = process.communicate(timeout=HANGS_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                raise
        return process.returncode, output

    def write_tests(self, tests, limit_s=60):
        """Makes ctest's tests of the build folder: commands by their names. BROKEN_STATE names a file that is theirs."""
        with open(os.path.join(self.build, "CTestTestfile.cmake"), "w", encoding="utf-8") as file:
            for test, command in tests.items():
                words = " ".join(f'"{word}"' for word in command)
                file.write(f'add_test({test} {words})\nset_tests_properties({test} PROPERTIES TIMEOUT {limit_s} ENVIRONMENT '
                           f'"BROKEN_STATE={self.folder.name}/state")\n')

    def script(self, name, text):
        """The command of a Python script."""
        path = os.path.join(self.folder.name, f"{name}.py")
        with open(path, "w", encoding="utf-8") as file:
            file.write(textwrap.dedent(text))
        return [sys.executable, path]

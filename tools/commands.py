"""Starts the tests of a build folder as ctest does, without ctest; ends processes."""
import json
import os
import signal
import subprocess


class Command:
    """The command of one ctest test."""

    def __init__(self, folder, test):
        properties = {entry["name"]: entry["value"] for entry in test.get("properties", [])}
        self.environment = {**os.environ, **dict(line.split("=", 1) for line in properties.get("ENVIRONMENT", []))}
        self.folder = properties.get("WORKING_DIRECTORY", folder)
        self.limit_s = float(properties.get("TIMEOUT", 300))
        self.words = [word for word in test.get("command", []) if not word.startswith("--gtest_output")]

    def script(self):
        """The absolute path of the Python script that the command runs; empty when it runs none."""
        scripts = [word for word in self.words if word.endswith(".py")]
        return os.path.normpath(os.path.join(self.folder, scripts[0])) if scripts else ""

    def start(self, output, case=""):
        """Starts all of the test, or one case of a GoogleTest program."""
        words = [*self.words, f"--gtest_filter={case}"] if case else self.words
        return subprocess.Popen(words, env=self.environment, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=output,
                                stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)


def commands_of(folder):
    """The Command of each test by its name."""
    listing = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], capture_output=True, text=True,
                             check=True).stdout
    return {test["name"]: Command(folder, test) for test in json.loads(listing)["tests"]}


def end(process):
    """Ends a process and all that it started."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()

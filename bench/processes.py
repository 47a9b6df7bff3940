"""Runs programs within a time, each in a process group of its own so that nothing outlives it."""

import os
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tools"))
from commands import end

GRACE = 10  # seconds that the others may take once the one that is waited for has ended


class Failed(Exception):
    """A sentence that says what could not be run, with its last lines."""


def end_orderly():
    """For main: a SIGTERM unwinds the program, so that what it started ends too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def require(programs, target):
    """Fails where one of the programs is missing."""
    for program in programs:
        if not os.access(program, os.X_OK):
            raise Failed(f"{program} is not there; run `make {target}`, or name another build with --build")


def tail(output):
    return "\n".join(f"    {line}" for line in output.splitlines()[-15:])


def run(name, command, timeout):
    """What it printed."""
    return run_together(name, [command], timeout)[0]


def run_together(name, commands, timeout):
    """Starts all and waits for the last one; the others may serve it, and are ended after it. What each printed."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        files = [open(os.path.join(folder, str(number)), "w+b") for number in range(len(commands))]
        processes = []
        try:
            for command, file in zip(commands, files):
                processes.append(start(command, file))
            wait(name, processes, files, time.monotonic() + timeout, timeout)
        finally:
            for process in processes:
                end(process)
        outputs = [text_of(file) for file in files]
        for file in files:
            file.close()
        return outputs


def start(command, file):
    return subprocess.Popen(
        [str(word) for word in command],
        stdin=subprocess.DEVNULL,
        stdout=file,
        stderr=subprocess.STDOUT,
        # No session of its own: Linux shares cores between sessions. `treadle run` starts all our ranks in one session, and
        # a peer's ranks are started one by one here.
        preexec_fn=os.setpgrp,
    )


def wait(name, processes, files, deadline, timeout):
    """Until the last one has ended, and the others too or their grace is over. Failed when one of them failed."""
    last_ended = None
    while last_ended is None or time.monotonic() < last_ended + GRACE:
        for process, file in zip(processes, files):
            if process.poll() not in (None, 0):
                raise Failed(
                    f"{name} failed with exit code {process.returncode}; its last lines:\n{tail(text_of(file))}"
                )
        if all(process.poll() is not None for process in processes):
            return
        if last_ended is None and processes[-1].poll() is not None:
            last_ended = time.monotonic()
        if time.monotonic() > deadline:
            raise Failed(
                f"{name} was not done within {timeout:g} s; its last lines:\n{tail(text_of(files[-1]))}"
            )
        time.sleep(0.05)


def text_of(file):
    file.flush()
    with open(file.name, encoding="utf-8", errors="replace") as reader:
        return reader.read()

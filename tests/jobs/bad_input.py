#!/usr/bin/env python3
"""What users, files, the environment and strangers on the network can get wrong: each ends in one clear line of each
process concerned and a non-zero exit, with nothing half-started and nothing left; strangers cannot harm a job at all.

usage: bad_input.py [--build FOLDER] [--only WORD]      (a build without torch runs the cases without the example)
"""
import argparse
import contextlib
import os
import random
import re
import signal
import socket
import sys
import tempfile
import threading
import time

import protocol
from watched_job import Job

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from free_port import free_port

HERE = os.path.dirname(os.path.abspath(__file__))
DIGITS = os.path.join(HERE, "..", "..", "examples", "data", "digits.csv")
LIMIT_S = 60  # for one job: far above what any takes, a hang is what it is for
LOG_LINE = re.compile(r"^(\[\d+\] )?\[[\d:.]+\] (info|warning|error) ")


class Failure(Exception):
    pass


def require(condition, text):
    if not condition:
        raise Failure(text)


def require_running(job):
    """An event of a job that has ended is not late: it never comes."""
    code = job.launcher.poll()
    require(code is None, f"it ended by itself, exit code {code}")


class Case:
    """One case: its folder, its programs, and the jobs it has started."""

    def __init__(self, build, folder):
        self.treadle, self.hybrid = (os.path.join(build, "bin", name) for name in ("treadle", "hybrid_digits"))
        self.join = os.path.join(build, "tests", "join_program")
        self.folder, self.jobs = folder, []

    def start(self, *command, environment=None):
        folder = os.path.join(self.folder, str(len(self.jobs)))
        os.mkdir(folder)
        job = Job(list(command), folder, environment)
        self.jobs.append(job)
        return job

    def by_hand(self, rank, size, port, name, *options, address="127.0.0.1", timeout=2):
        """A worker without the launcher."""
        return self.start(self.join, name, "--join-timeout", str(timeout), *options, environment={
            "RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": address, "MASTER_PORT": str(port)})

    def run(self, workers, *program, options=()):
        return self.start(self.treadle, "run", "-n", str(workers), *options, "--", *program)

    def ends(self, job, code):
        """Waits for the end and checks its exit code and that nothing is left; `code` None: any but 0."""
        require(job.finish(time.monotonic() + LIMIT_S), job.unfinished(LIMIT_S))
        got = job.launcher.returncode
        require(got == code if code is not None else got > 0, f"exit code {got}")
        left = job.leftovers()
        require(not left, "; ".join(left))

    def says(self, job, program, pattern, ranks=None):
        """Each process concerned says one line, of `program` and with `pattern`, and nothing besides but log lines.
        `ranks`: of workers under the launcher; None: the process itself. Returns the last process's line."""
        lines = [line for _, name, line in sorted(job.lines) if name == "err" and not LOG_LINE.match(line)]
        own = []
        for prefix in [""] if ranks is None else [f"[{rank}] " for rank in ranks]:
            own = [line for line in lines if line.startswith(prefix)]
            require(len(own) == 1, f"{len(own)} lines instead of one: {own}")
            require(own[0].startswith(prefix + program + ": ") and re.search(pattern, own[0]),
                    f"expected {program}: ... {pattern}, got: {own[0]}")
        return own[0]


def with_longer_limits(first, attempt):
    """Calls `attempt(limit)` with twice the limit, in seconds, each time until it returns true: an event that must
    come before the limit may take longer on a busy machine. `attempt` raises Failure for what no slowness explains."""
    limit = first
    while not attempt(limit):
        limit *= 2
        require(limit <= LIMIT_S, f"what must happen within {limit // 2} s did not")


def listening():
    server = socket.create_server(("127.0.0.1", 0))
    return server, server.getsockname()[1]


# ---- how a job is started

def name_used_twice(case):
    job = case.run(3, "/bin/sh", "-c", f'exec "{case.join}" "$([ "$RANK" = 0 ] && echo first || echo same)"')
    case.ends(job, 1)
    case.says(job, "join_program", r"the name 'same' is used twice, by rank 1 and rank 2", ranks=range(3))
    require(not job.first_line("joined"), "a worker joined")


def missing_rank(case):
    def attempt(limit):
        port = free_port()
        master, late = (case.by_hand(rank, 3, port, name, timeout=limit) for rank, name in ((0, "master"), (2, "late")))
        exact = f"rank 1 of 3 did not arrive within the join timeout of {limit} s"
        case.ends(master, 1)
        case.ends(late, 1)
        told = case.says(master, "join_program", rf"rank 1(, 2)? of 3 did not arrive within the join timeout of {limit} s")
        heard = case.says(late, "join_program", rf"{exact}|the master.*{port}|rank 0.*{port}")
        return exact in told and exact in heard

    with_longer_limits(4, attempt)


def port_in_use(case):
    server, port = listening()
    with server:
        job = case.run(2, case.join, "any", options=["--master-port", str(port)])
        case.ends(job, 1)
        case.says(job, "treadle run", rf"port {port} of 127.0.0.1 cannot be used.*in use")
        require(not job.workers, "a worker was started")
        job = case.by_hand(0, 2, port, "master")
        case.ends(job, 1)
        case.says(job, "join_program", rf"127.0.0.1:{port} is in use")


def unreachable_master(case):
    port = free_port()
    job = case.by_hand(1, 2, port, "worker", timeout=1)
    case.ends(job, 1)
    case.says(job, "join_program", rf"rank 0.*{port}")
    job = case.by_hand(1, 2, port, "worker", address="no-such-host.invalid", timeout=1)
    case.ends(job, 1)
    case.says(job, "join_program", r"no-such-host\.invalid")
    job = case.by_hand(1, 2, port, "worker", address="192.0.2.1", timeout=1)
    case.ends(job, 1)
    case.says(job, "join_program", r"192\.0\.2\.1.*not on this host")


def keyed(port, rank, size=2):
    return {"RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "TREADLE_JOB_KEY": "0123456789abcdef"}


def unreachable_master_with_key(case):
    port = free_port()
    job = case.start(case.join, "worker", "--join-timeout", "1", environment=keyed(port, 1))
    case.ends(job, 1)
    case.says(job, "join_program", rf"the master at tcp://127.0.0.1:{port} cannot be reached")


def wrong_environment(case):
    for name, value, pattern in (("RANK", "two", "RANK"), ("WORLD_SIZE", "0", "WORLD_SIZE"), ("RANK", "2", "RANK"),
                                 ("MASTER_PORT", "70000", "MASTER_PORT"), ("TREADLE_JOB_KEY", "short", "job key")):
        job = case.start(case.join, "worker", environment={**keyed(1, 1), name: value})
        case.ends(job, 1)
        case.says(job, "join_program", pattern)


def another_key(case):
    def attempt(limit):
        port, options = free_port(), ["--join-timeout", str(limit)]
        master = case.start(case.join, "master", *options, environment=keyed(port, 0))
        stranger = case.start(case.join, "stranger", *options,
                              environment={**keyed(port, 1), "TREADLE_JOB_KEY": "fedcba9876543210"})
        case.ends(stranger, 1)
        refused = case.says(stranger, "join_program", f"key|the master at .*{port} cannot be reached")
        case.ends(master, 1)
        case.says(master, "join_program", "rank 1 of 2 did not arrive")
        return "cannot be reached" not in refused

    with_longer_limits(2, attempt)


def other_world_size(case):
    port = free_port()
    jobs = [case.start(case.join, f"worker{rank}", environment=keyed(port, rank, 2 + rank))
            for rank in range(2)]
    for job in jobs:
        case.ends(job, 1)
        case.says(job, "join_program", "was started for a job of 3 workers and rank 0 for one of 2")


# ---- strangers

NEWER = protocol.VERSION + 1
BOTH_VERSIONS = f"version {NEWER}.*version {protocol.VERSION}|version {protocol.VERSION}.*version {NEWER}"

def peer_of_another_version(case):
    port = free_port()
    master = case.start(case.join, "master", environment=keyed(port, 0))
    with connected(master, port) as peer:
        peer.sendall(protocol.frame(protocol.greeting(protocol.HELLO, NEWER, 1, "newer")))
        text = protocol.rejection(protocol.read_frame(peer))
        require(re.search(BOTH_VERSIONS, text), f"it is told: {text}")
    # The job has lost nothing: the right rank 1 may still come.
    worker = case.start(case.join, "worker", environment=keyed(port, 1))
    case.ends(worker, 0)
    case.ends(master, 0)
    require(master.first_line(f"warning.*refused.*version {NEWER}"), "the master does not log the version")


def master_of_another_version(case):
    answers = [protocol.reject(f"it speaks version {protocol.VERSION} of Treadle's protocol and this worker version {NEWER}"),
               protocol.greeting(protocol.CHALLENGE, NEWER, 0, "newer") + bytes(32)]
    for answer in answers:
        server, port = listening()
        with server:
            job = case.start(case.join, "worker", environment=keyed(port, 1))
            server.settimeout(LIMIT_S)
            try:
                connection = server.accept()[0]
            except TimeoutError:
                require_running(job)
                raise
            with connection:
                protocol.read_frame(connection)
                connection.sendall(protocol.frame(answer))
                case.ends(job, 1)
        case.says(job, "join_program", BOTH_VERSIONS)


@contextlib.contextmanager
def connected(job, port):
    """A connection to the port on which the job listens, or soon will."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            connection = socket.create_connection(("127.0.0.1", port), timeout=LIMIT_S)
            break
        except ConnectionRefusedError:
            require_running(job)
            require(time.monotonic() < deadline, f"the listener on port {port} did not come within {LIMIT_S} s")
            time.sleep(0.01)
    with connection:
        yield connection


RANDOM = random.Random(1)  # the same bytes in every run

GARBAGE = [RANDOM.randbytes(4096), b"GET / HTTP/1.1\r\n\r\n", b"", b"\0" * 100, protocol.frame(b""),
           protocol.frame(RANDOM.randbytes(500)), protocol.frame(b"x", crc=7), protocol.frame(b"", kind=2),
           protocol.frame(protocol.greeting(protocol.HELLO, 1, 1, "x" * 200)),
           protocol.frame(protocol.greeting(protocol.HELLO, 1, -5, "stranger"))[:30],
           protocol.frame(protocol.greeting(protocol.HELLO, 1, 1, "stranger")) * 2]


class Thrower(threading.Thread):
    """Throws garbage at the ports of a job, in turn, until told to stop. Some connections stay open and silent."""

    def __init__(self, job, port):
        super().__init__(daemon=True)
        self.job, self.port, self.over, self.thrown, self.held = job, port, threading.Event(), 0, []

    def addresses(self):
        """The master port and whatever else a worker listens on."""
        yield socket.AF_INET, ("127.0.0.1", self.port)
        inodes = set()
        for pid, _ in self.job.processes():
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        inodes.update(re.findall(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}")))
        with open("/proc/net/tcp", encoding="ascii") as file:
            for fields in map(str.split, file):
                if fields[3] == "0A" and fields[9] in inodes:  # listening
                    yield socket.AF_INET, ("127.0.0.1", int(fields[1].split(":")[1], 16))
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
            for fields in map(str.split, file):
                if len(fields) == 8 and fields[5] == "01" and fields[6] in inodes and fields[7].startswith("@"):
                    yield socket.AF_UNIX, "\0" + fields[7][1:]

    def throw(self, family, address, data):
        connection = socket.socket(family)
        connection.settimeout(1)
        self.held = [*self.held[-50:], connection]
        with contextlib.suppress(OSError):
            connection.connect(address)
            connection.sendall(data)
            self.thrown += 1

    def run(self):
        while not self.over.is_set():
            for family, address in list(self.addresses()):
                for data in GARBAGE:
                    self.throw(family, address, data)

    def stop(self):
        self.over.set()
        self.join()
        for connection in self.held:
            connection.close()


def garbage_while_joining_and_running(case):
    port = free_port()
    job = case.run(2, "/bin/sh", "-c", f'exec "{case.join}" "worker$RANK" --wait',
                   options=["--master-port", str(port)])
    thrower = Thrower(job, port)
    thrower.start()
    try:
        wait_until(job, lambda: sum(" joined" in line for _, _, line in list(job.lines)) == 2, "the workers did not join")
        thrown = thrower.thrown
        wait_until(job, lambda: thrower.thrown > thrown + 100, "more garbage did not reach the running job")
        job.launcher.send_signal(signal.SIGUSR1)
        case.ends(job, 0)
    finally:
        thrower.stop()


def wait_until(job, condition, text):
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        require_running(job)
        require(time.monotonic() < deadline, f"{text} within {LIMIT_S} s")
        time.sleep(0.01)


# ---- the example: what it is given

def hybrid_with(case, pattern, *options, workers=4, code=None):
    """All its workers complain, and no run folder is made."""
    job = case.run(workers, case.hybrid, "--run-folder", os.path.join(case.folder, "run"), *options)
    case.ends(job, code)
    case.says(job, "hybrid_digits", pattern, ranks=range(workers))
    require(not os.path.exists(os.path.join(case.folder, "run")), "a run folder was made")


def hybrid_data(case):
    with open(DIGITS, encoding="ascii") as file:
        lines = file.readlines()
    path = os.path.join(case.folder, "digits.csv")

    def given(text, pattern):
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        hybrid_with(case, re.escape(path) + ".*" + pattern, "--data", path)

    hybrid_with(case, r"missing\.csv.*no such file", "--data", os.path.join(case.folder, "missing.csv"))
    hybrid_with(case, "not a regular file", "--data", case.folder)
    given("".join(lines)[:-3], r":1798: .*cut short")
    given("".join(lines[:-7]), r"ends after 1790 digits instead of 1797")
    given("a,b\n1,2\n", r":1: .*column names")
    given("".join(lines[:9] + [lines[9].replace(",", ",99,", 1)] + lines[10:]), r":10: ")


def hybrid_options(case):
    hybrid_with(case, r"--colour|colour", "--colour", "blue", code=2)
    hybrid_with(case, r"epochs.*\b0\b", "--epochs", "0", code=2)
    hybrid_with(case, r"lr.*nan", "--lr", "nan", code=2)


def hybrid_world_size(case):
    hybrid_with(case, r"needs 4 workers .*was started with 3", workers=3)
    hybrid_with(case, r"needs 4 workers .*was started with 5", workers=5)


def hybrid_without_launcher(case):
    lone = {name: "" for name in os.environ if name in ("RANK", "WORLD_SIZE", "TREADLE_RANK")}
    job = case.start(case.hybrid, environment=lone)
    case.ends(job, 1)
    case.says(job, "hybrid_digits", "treadle run")


CASES = [name_used_twice, missing_rank, port_in_use, unreachable_master, unreachable_master_with_key, wrong_environment,
         another_key, other_world_size, peer_of_another_version, master_of_another_version,
         garbage_while_joining_and_running]
HYBRID_CASES = [hybrid_data, hybrid_options, hybrid_world_size, hybrid_without_launcher]


def run_case(function, build):
    """Whether it passed."""
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="treadle-bad-") as folder:
        case = Case(build, folder)
        try:
            function(case)
        except (Failure, OSError, EOFError, ValueError) as failure:
            print(f"FAILED {function.__name__}: {failure}")
            for job in case.jobs:
                print(f"--- {' '.join(job.launcher.args)}\n{job.output()}---")
            return False
        finally:
            for job in case.jobs:
                job.close()
    print(f"ok     {function.__name__} ({time.monotonic() - started:.1f} s)", flush=True)
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/dev", help="the build folder [build/dev]")
    parser.add_argument("--only", default="", help="only cases with this in their name")
    options = parser.parse_args()
    build = os.path.abspath(options.build)
    cases = CASES + (HYBRID_CASES if os.path.exists(os.path.join(build, "bin", "hybrid_digits")) else [])
    passed = [run_case(function, build) for function in cases if options.only in function.__name__]
    print(f"bad_input: {'ok' if passed and all(passed) else 'FAILED'} cases={len(passed)} passed={sum(passed)}")
    return 0 if passed and all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())

"""Machines in network namespaces, joined by a bridge, each with so many bits per second out of it and into it (root only), and
programs of the summation service on them.
"""

import contextlib
import os
import pathlib
import re
import secrets
import subprocess
import sys
import typing

import namespaces
from processes import Failed

ROOT = pathlib.Path(__file__).resolve().parents[1]
PORT = 7077
STOLEN = 0.03  # of the cores: rounds of which the host of a virtual machine took more are measured again
ATTEMPTS = 4
NETWORK = "10.78.31"
MTU = 1500


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        raise Failed(f"`{' '.join(words)}` failed: {done.stderr.strip()}")


def best_gain(workers, servers):
    """Of the summation service over a ring (treadle/core/summation/shares.h)."""
    n, k = workers, min(servers, workers)
    return (n * n + k * n - 2 * k) / (n * n)


def least_time(workers, servers, size, bandwidth):
    """Seconds that the network takes at least for a sum of so many bytes per worker, at so many bytes per second."""
    ring = 2 * (workers - 1) * size / (workers * bandwidth)
    return ring / best_gain(workers, servers)


class Bed:
    """Machine i has the namespace and the address of that number; one namespace more has the bridge. `parts`: of the rate, for each
    machine; if it is empty, each has all of it."""

    def __init__(self, machines, rate, parts=()):
        self.prefix = f"treadle-bed-{os.getpid()}"
        self.machines, self.rate, self.parts = machines, rate, parts or [1] * machines

    def __enter__(self):
        namespaces.require()
        try:
            self.make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def make(self):
        switch = self.name("switch")
        namespaces.ip("netns", "add", switch)
        namespaces.ip("-n", switch, "link", "add", "bridge0", "type", "bridge")
        namespaces.ip("-n", switch, "link", "set", "bridge0", "up")
        for machine in range(self.machines):
            own, port = self.name(machine), f"port{machine}"
            namespaces.ip("netns", "add", own)
            namespaces.ip("link", "add", "eth0", "netns", own, "type", "veth", "peer", "name", port, "netns", switch)
            namespaces.ip("-n", own, "addr", "add", f"{self.address(machine)}/24", "dev", "eth0")
            namespaces.ip("-n", switch, "link", "set", port, "master", "bridge0")
            for place, device in ((own, "eth0"), (switch, port)):
                namespaces.ip("-n", place, "link", "set", "dev", device, "mtu", str(MTU))
                # Below the burst, or a segment would not pass at once.
                namespaces.ip("-n", place, "link", "set", "dev", device, "gso_max_size", "16384")
                namespaces.ip("-n", place, "link", "set", device, "up")
                run("ip", "netns", "exec", place, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", self.rate_of(machine),
                    "burst", "32kb", "limit", "2mb")
            namespaces.ip("-n", own, "link", "set", "lo", "up")

    def __exit__(self, *_):
        for machine in [*range(self.machines), "switch"]:
            with contextlib.suppress(Failed, subprocess.TimeoutExpired):
                namespaces.ip("netns", "delete", self.name(machine))

    def name(self, machine):
        return f"{self.prefix}-{machine}"

    def rate_of(self, machine):
        number, unit = re.fullmatch(r"([\d.]+)([a-zA-Z]*)", self.rate).groups()
        return f"{self.parts[machine] * float(number)}{unit}"

    @staticmethod
    def address(machine):
        return f"{NETWORK}.{machine + 1}"

    def start(self, machine, *command, environment=None):
        variables = [f"{name}={value}" for name, value in (environment or {}).items()]
        words = ["ip", "netns", "exec", self.name(machine), "env", *variables, *map(str, command)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def goodput(self, runs=3):
        """Bytes per second each way between the first two machines, of the slower direction. The best of some runs: whatever else the
        machine does makes it less."""
        return max(self.goodput_once() for _ in range(runs))

    def goodput_once(self, seconds=4):
        program = ROOT / "bench" / "netbed" / "goodput.py"
        ends = [self.start(m, sys.executable, program, role, self.address(0), seconds) for m, role in ((0, "listen"), (1, "dial"))]
        try:
            return min(float(finished(end)) for end in ends)
        finally:
            for end in ends:
                end.kill()


def finished(process, timeout=120):
    try:
        out, err = process.communicate("", timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        raise Failed("a machine of the bed did not end in time") from None
    if process.returncode != 0:
        raise Failed(f"a machine of the bed failed: {err.strip()}")
    return out


class Cores(typing.NamedTuple):
    """What all cores together have done since the machine started, in ticks."""

    idle: int
    stolen: int  # by the host of a virtual machine
    all: int

    @classmethod
    def now(cls):
        numbers = [int(word) for word in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return cls(numbers[3] + numbers[4], numbers[7], sum(numbers))

    def parts_since(self, before):
        """(idle, stolen), of 1. Where little is idle, it is the cores that limit what was measured."""
        ticks = max(self.all - before.all, 1)
        return (self.idle - before.idle) / ticks, (self.stolen - before.stolen) / ticks


class Rounds(typing.NamedTuple):
    seconds: list  # of each: from when the first worker begins until the last one has ended
    idle: float
    stolen: float
    attempts: int = 1  # of which these are the ones that the host has disturbed least


def rounds_of(machines, workers, rounds):
    """Those after the first one."""

    def next_round():
        return [list(map(int, machine.stdout.readline().split())) for machine in machines[:workers]]

    try:
        next_round()
        before = Cores.now()
        lines = [next_round() for _ in range(rounds)]
        parts = Cores.now().parts_since(before)
        if any(len(line) != 3 for lines_of_round in lines for line in lines_of_round):
            raise Failed("a machine of the bed failed: " + "; ".join(m.communicate("", timeout=20)[1].strip() for m in machines))
    finally:
        for machine in machines:
            with contextlib.suppress(subprocess.TimeoutExpired, ValueError, BrokenPipeError):
                machine.communicate("", timeout=20)
            machine.kill()
    return Rounds([(max(end for _, _, end in one) - min(begin for _, begin, _ in one)) / 1e6 for one in lines], *parts)


def least_disturbed(measure):
    """Of some attempts: the one of which the host took least, whatever its seconds are."""
    attempts = [measure()]
    while attempts[-1].stolen > STOLEN and len(attempts) < ATTEMPTS:
        attempts.append(measure())
    return min(attempts, key=lambda rounds: rounds.stolen)._replace(attempts=len(attempts))


class Service:
    """A summation service of so many workers and servers in a bed of its own, and what is compared with it there."""

    def __init__(self, build, workers, servers, rate, rounds, parts=()):
        self.programs = build / "bench"
        self.workers, self.servers, self.rounds = workers, servers, rounds
        self.machines = workers + servers
        self.bed = Bed(self.machines, rate, parts)

    def __enter__(self):
        self.bed.__enter__()
        return self

    def __exit__(self, *_):
        self.bed.__exit__()

    def sums(self, size, *more):
        addresses = ",".join(f"tcp://{self.bed.address(m)}:{PORT}" for m in range(self.machines))
        common = ["--workers", self.workers, "--servers", self.servers, "--bytes", size, "--rounds", self.rounds + 1,
                  "--addresses", addresses, "--bandwidths", ",".join(map(str, self.bed.parts)), *more]
        node = self.programs / "treadle_netbed_node"

        def measure():
            machines = [self.bed.start(m, node, "--self", m, *common) for m in range(self.machines)]
            return rounds_of(machines, self.workers, self.rounds)

        return least_disturbed(measure)

    def rings(self, size):
        """Without TLS, as the service that it is compared with."""
        return self.job(size, 1, "--ring", "--plaintext")

    def group_of_job(self, size, per_host):
        return self.job(size, per_host)

    def sums_of_job(self, size, per_host):
        return self.job(size, per_host, "--service", servers=self.servers)

    def job(self, size, per_host, *options, servers=0):
        """Of a job with so many workers on each machine that has some."""
        return least_disturbed(lambda: self.rounds_of_job(size, per_host, *options, servers=servers))

    def rounds_of_job(self, size, per_host, *options, servers):
        workers = self.workers * per_host
        shared = {"TREADLE_WORLD_SIZE": workers + servers, "TREADLE_MASTER": f"{self.bed.address(0)}:{PORT}",
                  "TREADLE_JOB_KEY": secrets.token_hex(16), "TREADLE_SERVERS": servers}
        worker = [self.programs / "treadle_netbed_job", "--bytes", size, "--rounds", self.rounds + 1, *options]
        machines = []
        for rank in range(workers + servers):
            machine = rank // per_host if rank < workers else self.workers + rank - workers
            listen = ["--listen", f"tcp://{self.bed.address(machine)}:0"]
            program = [*worker, *listen] if rank < workers else [self.programs.parent / "bin" / "treadle", "server"]
            machines.append(self.bed.start(machine, *program, environment={**shared, "TREADLE_RANK": rank}))
        return rounds_of(machines, workers, self.rounds)

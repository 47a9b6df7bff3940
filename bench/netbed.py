"""The bed that measures the summation service: machines in network namespaces, joined by a bridge, each with so many bits per
second out of it and into it (root only).

    python bench/netbed.py [--workers 4 --servers 2] [--bytes 32000000] [--rate 200mbit] [--rounds 5]

B is the goodput of one long TCP stream each way at the same time in the same bed. A row has the median of the rounds after the
first, over the least time that the network allows (treadle/core/summation/shares.h). Without --workers all pairs are measured.
Writes build/bench/netbed.json and ends with `netbed: ok|FAILED rows=... worst=...`.
"""

import argparse
import contextlib
import json
import os
import pathlib
import statistics
import subprocess
import sys

import namespaces
from processes import Failed, end_orderly

ROOT = pathlib.Path(__file__).resolve().parents[1]
PAIRS = [(3, 0), (3, 1), (4, 1), (4, 2), (4, 4), (6, 3)] + [(8, servers) for servers in range(9)]
BAR = 1.05
PORT = 7077
NETWORK = "10.78.31"


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        raise Failed(f"`{' '.join(words)}` failed: {done.stderr.strip()}")


class Idle:
    """Which part of the time of all cores was idle meanwhile: where there is little, the ratio is that of the machine."""

    @staticmethod
    def times():
        numbers = [int(word) for word in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return numbers[3] + numbers[4], sum(numbers)

    def __enter__(self):
        self.begin = self.times()
        return self

    def __exit__(self, *_):
        idle, all_of_them = (end - begin for end, begin in zip(self.times(), self.begin))
        self.part = idle / max(all_of_them, 1)


class Bed:
    """Machine i has the namespace and the address of that number; one namespace more has the bridge."""

    def __init__(self, machines, rate):
        self.prefix = f"treadle-bed-{os.getpid()}"
        self.machines, self.rate = machines, rate

    def __enter__(self):
        if not namespaces.available():
            raise Failed("network namespaces need root and the command `ip` (Debian package iproute2)")
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
                # Below the burst, or a segment would not pass at once.
                namespaces.ip("-n", place, "link", "set", "dev", device, "gso_max_size", "16384")
                namespaces.ip("-n", place, "link", "set", device, "up")
                run("ip", "netns", "exec", place, "tc", "qdisc", "add", "dev", device, "root", "tbf", "rate", self.rate,
                    "burst", "32kb", "limit", "2mb")
            namespaces.ip("-n", own, "link", "set", "lo", "up")

    def __exit__(self, *_):
        for machine in [*range(self.machines), "switch"]:
            with contextlib.suppress(Failed, subprocess.TimeoutExpired):
                namespaces.ip("netns", "delete", self.name(machine))

    def name(self, machine):
        return f"{self.prefix}-{machine}"

    @staticmethod
    def address(machine):
        return f"{NETWORK}.{machine + 1}"

    def start(self, machine, *command):
        words = ["ip", "netns", "exec", self.name(machine), *map(str, command)]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def goodput(self, seconds=4):
        """Bytes per second each way, of the slower direction."""
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


def least_time(workers, servers, size, bandwidth):
    n, k = workers, min(servers, workers)
    return 2 * n * (n - 1) * size / ((n * n + k * n - 2 * k) * bandwidth)


def rounds_of(bed, node, workers, servers, sizes, rounds):
    """The seconds of each round: from when the first worker begins until the last one has ended."""
    addresses = ",".join(f"tcp://{bed.address(m)}:{PORT}" for m in range(workers + servers))
    common = ["--workers", workers, "--servers", servers, "--bytes", ",".join(map(str, sizes)), "--rounds", rounds + 1,
              "--addresses", addresses]
    machines = [bed.start(m, node, "--self", m, *common) for m in range(workers + servers)]
    try:
        lines = [[list(map(int, machine.stdout.readline().split())) for machine in machines[:workers]] for _ in range(rounds + 1)]
        if any(len(line) != 3 for lines_of_round in lines for line in lines_of_round):
            raise Failed("a machine of the bed failed: " + "; ".join(m.communicate("", timeout=20)[1].strip() for m in machines))
    finally:
        for machine in machines:
            with contextlib.suppress(subprocess.TimeoutExpired, ValueError, BrokenPipeError):
                machine.communicate("", timeout=20)
            machine.kill()
    return [(max(end for _, _, end in one) - min(begin for _, begin, _ in one)) / 1e6 for one in lines[1:]]


def measure(node, workers, servers, size, rate, rounds):
    with Bed(workers + servers, rate) as bed:
        bandwidth = bed.goodput()
        with Idle() as idle:
            seconds = rounds_of(bed, node, workers, servers, [size], rounds)
    least = least_time(workers, servers, size, bandwidth)
    return {"workers": workers, "servers": servers, "bytes": size, "rate": rate, "bandwidth": bandwidth, "seconds": seconds,
            "idle": idle.part, "least": least, "ratio": statistics.median(seconds) / least}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--servers", type=int, default=0)
    parser.add_argument("--bytes", type=int, default=32_000_000)
    parser.add_argument("--rate", default="200mbit")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    options = parser.parse_args()
    if options.workers is not None and not (options.workers >= 2 and options.servers >= 0):
        parser.error("a sum is among at least 2 workers, with 0 servers or more")
    end_orderly()
    node = options.build / "bench" / "treadle_netbed_node"
    pairs = [(options.workers, options.servers)] if options.workers else PAIRS
    rows = []
    for workers, servers in pairs:
        row = measure(node, workers, servers, options.bytes, options.rate, options.rounds)
        rows.append(row)
        spread = (max(row["seconds"]) - min(row["seconds"])) / statistics.median(row["seconds"])
        print(f"({workers},{servers}) {statistics.median(row['seconds']):.3f} s  {row['ratio']:.3f} of the least time  "
              f"spread {100 * spread:.1f}%  B {row['bandwidth'] / 1e6:.2f} MB/s  idle {100 * row['idle']:.0f}%", flush=True)
    out = ROOT / "build" / "bench" / "netbed.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(json.dumps(rows, indent=2) + "\n")
    over = [row for row in rows if not 1 <= row["ratio"] <= BAR]
    worst = max(rows, key=lambda row: row["ratio"])
    verdict = "FAILED" if over else "ok"
    print(f"netbed: {verdict} rows={len(rows)} over={len(over)} worst={worst['ratio']:.3f}"
          f" of=({worst['workers']},{worst['servers']})")
    return 1 if over else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        print(f"netbed: FAILED {failure}")
        sys.exit(1)

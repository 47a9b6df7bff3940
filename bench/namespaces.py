"""Where two processes run: both on the loopback, or each in a network namespace of its own with a pair of veth
interfaces between them, which is as far apart as one machine allows (root only)."""

import contextlib
import dataclasses
import os
import shutil
import subprocess

from processes import Failed

ADDRESSES = ("10.77.31.1", "10.77.31.2")


@dataclasses.dataclass(frozen=True)
class Place:
    """Where one process runs: what stands before its command, its address, and the interface of that address."""

    prefix: tuple = ()
    address: str = "127.0.0.1"
    interface: str = "lo"


LOOPBACK = (Place(), Place())


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        raise Failed(f"`ip {' '.join(words)}` failed: {done.stderr.strip()}")


def available():
    return os.geteuid() == 0 and shutil.which("ip") is not None


def require():
    if not available():
        raise Failed("network namespaces need root and the command `ip` (Debian package iproute2)")


def limit_rate(place, rate):
    """What it sends is shaped: `rate` as `tc` reads it, with a bucket of 32 kB, about what one millisecond lets through."""
    shape = ["tc", "qdisc", "add", "dev", place.interface, "root", "tbf", "rate", rate, "burst", "32kb", "latency", "100ms"]
    done = subprocess.run([*place.prefix, *shape], capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        raise Failed(f"`{' '.join(shape)}` failed: {done.stderr.strip()}")


@contextlib.contextmanager
def two_namespaces(rate=None):
    """Makes both and removes them afterwards, with all that is in them. `rate`: of the link, each way."""
    require()
    names = [f"treadle-bench-{os.getpid()}-{number}" for number in (0, 1)]
    interfaces = [f"tb{os.getpid()}-{number}" for number in (0, 1)]
    made = []
    try:
        for name in names:
            ip("netns", "add", name)
            made.append(name)
        ip("link", "add", interfaces[0], "netns", names[0], "type", "veth", "peer", interfaces[1], "netns", names[1])
        for name, interface, address in zip(names, interfaces, ADDRESSES):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", interface)
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "link", "set", interface, "up")
        places = tuple(
            Place(("ip", "netns", "exec", name), address, interface)
            for name, interface, address in zip(names, interfaces, ADDRESSES)
        )
        if rate:
            for place in places:
                limit_rate(place, rate)
        yield places
    finally:
        for name in made:
            ip("netns", "delete", name)

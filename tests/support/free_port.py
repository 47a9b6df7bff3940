"""TCP ports of this host that no other test takes: each process claims a range, as tests/support/free_port.h says."""
import functools
import itertools
import os
import socket

_FIRST_PORT, _PORTS, _RANGES = 12_000, 180, 100


@functools.cache
def _ports():
    """The ports of this process's range, over and over, and the socket that claims it."""
    claim = socket.socket(socket.AF_UNIX)
    for tries in range(_RANGES):
        number = (os.getpid() + tries) % _RANGES
        try:
            claim.bind(f"\0treadle-test-ports-{number}")
        except OSError:
            continue
        first = _FIRST_PORT + number * _PORTS
        return itertools.cycle(range(first, first + _PORTS)), claim
    raise RuntimeError("other processes have claimed all ranges of test ports")


def free_port():
    """A port that nobody listens on, and that the last calls did not return."""
    ports, _ = _ports()
    for port in itertools.islice(ports, _PORTS):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise RuntimeError("something listens on each port of this test's range")

"""A TCP port of this host that nobody listens on now."""
import secrets
import socket


def free_port():
    """From below the range that the kernel hands out by itself, so that no other socket takes it meanwhile."""
    while True:
        port = 12_000 + secrets.randbelow(18_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue

"""Just enough of Treadle's protocol to be a peer of another version: frames (treadle/core/wire/frame.h) and the messages
of the handshake (treadle/core/link/handshake_messages.h)."""
import os
import re
import struct

MAGIC = 0x314C4454
HANDSHAKE = 1  # the kind of frame
HELLO, CHALLENGE, REJECT = 1, 2, 5
FAILED_PRECONDITION = 6
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
with open(os.path.join(ROOT, "treadle", "core", "link", "handshake_messages.h"), encoding="utf-8") as header:
    VERSION = int(re.search(r"kProtocolVersion = (\d+)", header.read())[1])


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def frame(payload, kind=HANDSHAKE, crc=None):
    def header(checksum):
        return struct.pack("<IBBHIIQ", MAGIC, kind, 0, 0, len(payload), checksum, 0)

    return header(crc32c(header(0) + payload) if crc is None else crc) + payload


def string(text):
    return struct.pack("<I", len(text)) + text.encode()


def greeting(step, version, rank, name):
    return struct.pack("<BHBQi", step, version, 1, 0, rank) + string(name) + os.urandom(32)


def reject(text):
    return struct.pack("<BB", REJECT, FAILED_PRECONDITION) + string(text)


def read_exactly(connection, size):
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        if not more:
            raise EOFError(f"the connection closed after {len(data)} of {size} bytes")
        data += more
    return data


def read_frame(connection):
    """The payload of the next frame, its checksum checked."""
    header = read_exactly(connection, 24)
    magic, kind, subject, buffers, size, checksum, rest = struct.unpack("<IBBHIIQ", header)
    payload = read_exactly(connection, size)
    if magic != MAGIC or kind != HANDSHAKE or buffers or rest:
        raise ValueError(f"not a frame of the handshake: {header!r}")
    if crc32c(struct.pack("<IBBHIIQ", magic, kind, subject, buffers, size, 0, rest) + payload) != checksum:
        raise ValueError("a wrong checksum")
    return payload


def rejection(payload):
    """The sentence of a Reject."""
    if payload[0] != REJECT:
        raise ValueError(f"step {payload[0]} and not a rejection")
    return payload[6:6 + struct.unpack("<I", payload[2:6])[0]].decode()

"""One end of two long TCP streams, one each way at the same time: python goodput.py listen|dial ADDRESS SECONDS.

Prints the bytes per second that came in, without the first second.
"""

import socket
import sys
import threading
import time

PORT = 7099
CHUNK = 1 << 16


def prepare(stream):
    stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"cubic")
    return stream


def connected(role, address):
    if role == "listen":
        with socket.create_server((address, PORT)) as server:
            server.settimeout(20)
            return prepare(server.accept()[0])
    deadline = time.monotonic() + 20
    while True:
        try:
            return prepare(socket.create_connection((address, PORT), timeout=20))
        except ConnectionRefusedError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main():
    role, address, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    stream = connected(role, address)
    stream.settimeout(30)
    end = time.monotonic() + 1 + seconds

    def send():
        data = bytes(CHUNK)
        while time.monotonic() < end:
            stream.sendall(data)
        stream.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send)
    sender.start()
    came, begin = 0, None
    while data := stream.recv(1 << 20):
        now = time.monotonic()
        if begin is None and now > end - seconds:
            begin, came = now, 0
            continue
        if now < end:
            came += len(data)
    sender.join()
    print(came / (end - begin))


main()

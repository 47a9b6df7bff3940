#!/usr/bin/env python3
"""Jobs over two hosts, which are two network namespaces with a pair of veth interfaces between them: by a key, by
certificates, in clear, and open. What goes over the wire is watched. Left out where namespaces cannot be made (root).

usage: hosts.py [--build FOLDER]
"""
import argparse
import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
import namespaces

LIMIT_S = 60  # far above what anything takes: a hang is what it is for
JOB_LIMIT_S = 2 * LIMIT_S
MASTER_PORT = 29500
MARK = "this is what nobody else may read. "
KEY = "the key of a job over two hosts"
LEFT_OUT = 77


class Wire:
    """Collects all that one interface sees until it is closed."""

    def __init__(self, place):
        # A socket belongs to the namespace that its thread was in when it made it.
        self.bytes = bytearray()
        self._over = False
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(place,), daemon=True)
        self._thread.start()
        if not self._ready.wait(LIMIT_S):
            raise RuntimeError("the interface could not be watched")

    def _watch(self, place):
        descriptor = os.open(f"/run/netns/{place.prefix[3]}", os.O_RDONLY)
        if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0) != 0:  # os.setns is there from Python 3.12 on
            return
        os.close(descriptor)
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as watch:
            watch.bind((place.interface, 0))
            watch.setsockopt(socket.SOL_SOCKET, 33, 1 << 26)  # SO_RCVBUFFORCE
            watch.settimeout(0.1)
            self._ready.set()
            while not self._over:
                with contextlib.suppress(TimeoutError):
                    self.bytes += watch.recv(1 << 17)

    def close(self):
        self._over = True
        self._thread.join()
        return bytes(self.bytes)


class Certificates:
    """An authority and one certificate for all workers, made by openssl."""

    def __init__(self, folder):
        path = lambda name: os.path.join(folder, name)
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        self._run("req", "-x509", *new_key, "-subj", "/CN=authority", "-keyout", path("ca.key"), "-out", path("ca.pem"))
        self._run("req", "-x509", *new_key, "-subj", "/CN=worker", "-CA", path("ca.pem"), "-CAkey", path("ca.key"),
                  "-addext", "basicConstraints=critical,CA:FALSE", "-keyout", path("worker.key"), "-out", path("worker.pem"))
        self.environment = {"TREADLE_TLS_CERTIFICATE": path("worker.pem"), "TREADLE_TLS_PRIVATE_KEY": path("worker.key"),
                            "TREADLE_TLS_AUTHORITY": path("ca.pem")}

    @staticmethod
    def _run(*words):
        subprocess.run(["openssl", *words], check=True, capture_output=True, timeout=LIMIT_S)


class Job:
    """Workers w0, w1, w2: the first and the last on one host, the other on another."""

    def __init__(self, places, program, folder):
        self._places, self._program, self._folder = places, program, folder

    def run(self, environments, options=(), open_job=False):
        """Exit codes and what they wrote, by rank; the code of a worker that did not end in time is None. `environments`:
        of each of them."""
        started = []
        try:
            for rank, environment in enumerate(environments):
                place = self._places[rank % 2]
                variables = {
                    "PATH": os.environ["PATH"],
                    "TREADLE_RANK": "any" if open_job and rank else str(rank),
                    "TREADLE_WORLD_SIZE": "open" if open_job else str(len(environments)),
                    "TREADLE_MASTER": f"{self._places[0].address}:{MASTER_PORT}",
                    **environment,
                }
                command = [*place.prefix, self._program, f"w{rank}", "--join-timeout", str(LIMIT_S), "--echo", MARK,
                           "--workers", str(len(environments)),
                           *(option.replace("{own}", place.address) for option in options)]
                started.append(subprocess.Popen(command, cwd=self._folder, env=variables, stdin=subprocess.DEVNULL,
                                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
            end = time.monotonic() + JOB_LIMIT_S
            for one in started:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    one.communicate(timeout=max(1, end - time.monotonic()))
            codes = [one.poll() for one in started]
        finally:
            for one in started:
                one.kill()
            texts = [one.communicate()[0] for one in started]
        return codes, texts


def expect(found, what, why, condition, texts):
    if not condition:
        found.append(f"FAILED {what}: {why}\n" + "".join(texts))


def all_ended(found, what, codes, texts, expected):
    """Whether all ended in time. If not, the reason is a worker that ended with another code than `expected`: that is no
    matter of time."""
    wrong = any(code not in (None, expected) for code in codes)
    why = f"exit codes {codes}" if wrong else f"a worker did not end within {JOB_LIMIT_S} s"
    expect(found, what, why, None not in codes, texts)
    return None not in codes


def check(places, program, folder):
    """What is wrong, one paragraph each."""
    job, found = Job(places, program, folder), []
    certificates = Certificates(folder).environment
    keyed = {"TREADLE_JOB_KEY": KEY}

    def works(what, environments, readable, beside=True, **more):
        wire = Wire(places[1])
        try:
            codes, texts = job.run(environments, **more)
        finally:
            seen = wire.close()
        if not all_ended(found, what, codes, texts, expected=0):
            return
        expect(found, what, f"it does not work ({codes})", codes == [0, 0, 0], texts)
        local = ["w0 reaches w2 on this host" in texts[0], "w1 reaches w0 on this host" in texts[1]]
        expect(found, what, f"UNIX sockets to w2 beside and to w0 elsewhere: {local}", local == [beside, False], texts)
        expect(found, what, "nothing was seen on the wire", len(seen) > len(MARK), texts)
        expect(found, what, f"it {'hides' if readable else 'shows'} what it sends", (MARK.encode() in seen) == readable, texts)

    def refused(what, environments, why):
        # The one that is refused has to come before the others' time is up.
        for limit in (3, 6, 12, 24):
            codes, texts = job.run(environments, options=["--join-timeout", str(limit)])
            if not all_ended(found, what, codes, texts, expected=1):
                return
            expect(found, what, f"a worker has joined within {limit} s ({codes})", 0 not in codes, texts)
            if any(why in text for text in texts):
                break
        expect(found, what, f"nobody is told '{why}'", any(why in text for text in texts), texts)

    works("a job by a key", [keyed] * 3, False)
    works("a job by certificates", [certificates] * 3, False, beside=False)
    works("a job by a key, with addresses given", [keyed] * 3, False, beside=False, options=["--listen", "tcp://{own}:0"])
    works("a job by both", [{**keyed, **certificates}] * 3, False, beside=False)
    works("an open job by a key", [keyed] * 3, False, open_job=True)
    works("an open job by certificates", [certificates] * 3, False, beside=False, open_job=True)
    works("a job in clear", [keyed] * 3, True, options=["--allow-plaintext"])
    refused("a job without a key", [{}] * 3, "TREADLE_JOB_KEY_FILE")
    refused("a worker with another key", [keyed, {"TREADLE_JOB_KEY": "the key of another job"}, keyed], "same key")
    refused("a worker without a certificate", [certificates, keyed, certificates], "TLS")
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/dev", help="the build folder [build/dev]")
    program = os.path.join(os.path.abspath(parser.parse_args().build), "tests", "join_program")
    if shutil.which("openssl") is None:
        print("hosts: left out: it needs the command `openssl`")
        return LEFT_OUT
    with contextlib.ExitStack() as stack:
        try:
            places = stack.enter_context(namespaces.two_namespaces())
        except namespaces.Failed as error:
            print(f"hosts: left out: {error}")
            return LEFT_OUT
        found = check(places, program, stack.enter_context(tempfile.TemporaryDirectory(prefix="treadle-hosts-")))
    print("\n\n".join(found + [f"hosts: {'FAILED' if found else 'ok'}"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""A job under `treadle run` that a test watches from outside: its workers by rank, its output with times, and what it
leaves behind. Standard library only; one thread per output stream, everything else on the caller's thread, but for what
`when` is given.
"""
import os
import re
import select
import signal
import subprocess
import threading
import time
import uuid

MARK = "TREADLE_TEST_JOB"  # in the environment of every process of a job, with a value of the job's own
POLL_S = 0.002             # how often /proc is looked at: it tells nobody when it changes
HANGS_S = 60.0             # far above what anything takes: a limit of so long ends a hang


class Worker:
    """One process that the launcher started. The pidfd keeps a number that was given away again from fooling us."""

    def __init__(self, rank, pid):
        self.rank, self.pid = rank, pid
        self.fd = os.pidfd_open(pid)
        self.born, self.joins, self.ended = time.monotonic(), None, None

    def signal(self, number):
        signal.pidfd_send_signal(self.fd, number)

    def is_over(self):
        if self.ended is None and select.select([self.fd], [], [], 0)[0]:
            self.ended = time.monotonic()
        return self.ended is not None


class Job:
    def __init__(self, command, folder, environment=None):
        self.mark = uuid.uuid4().hex
        self.folder, self.workers, self.lines = folder, [], []
        self.lock, self.watches, self.streams = threading.Lock(), [], 2  # `streams`: how many are not at their end
        # Whatever respects TMPDIR leaves its files where we look.
        variables = {**os.environ, **(environment or {}), MARK: self.mark, "TMPDIR": folder}
        self.launcher = subprocess.Popen(command, cwd=folder, env=variables, stdin=subprocess.DEVNULL,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
                                         start_new_session=True)
        self.started = time.monotonic()
        self.readers = [threading.Thread(target=self._read, args=(stream, name), daemon=True)
                        for stream, name in ((self.launcher.stdout, "out"), (self.launcher.stderr, "err"))]
        for reader in self.readers:
            reader.start()

    def _read(self, stream, name):
        for line in stream:
            line = line.rstrip("\n")
            with self.lock:
                self.lines.append((time.monotonic(), name, line))
                found = [watch for watch in self.watches if watch[0].search(line)]
                self.watches = [watch for watch in self.watches if watch not in found]
            for _, action, done in found:
                action()
                done.set()
        with self.lock:
            self.streams -= 1
            left = self.watches if self.streams == 0 else []
        for _, _, done in left:
            done.set()

    def when(self, pattern, action):
        """Calls `action` once, at the first line that holds `pattern`: on the thread that reads the line, or here when
        the line has been read already. Returns an event that is set after that, and at the end of the output."""
        done = threading.Event()
        with self.lock:
            written = any(re.search(pattern, line) for _, _, line in self.lines)
            if not written and self.streams > 0:
                self.watches.append((re.compile(pattern), action, done))
                return done
        if written:
            action()
        done.set()
        return done

    def find_workers(self):
        """Adds new children of the launcher; they stand in the order of their start, so the place is the rank. Orphans
        that the launcher adopts come last, and only when all workers have been found."""
        try:
            with open(f"/proc/{self.launcher.pid}/task/{self.launcher.pid}/children", encoding="ascii") as children:
                pids = [int(pid) for pid in children.read().split()]
        except OSError:
            return
        known = {worker.pid for worker in self.workers}
        for pid in pids:
            if pid not in known:
                try:
                    self.workers.append(Worker(len(self.workers), pid))
                except ProcessLookupError:
                    pass  # reaped already: the job is failing on its own, which the caller will see

    def find_joining(self):
        """Notes who listens for the others by now: the first thing a worker does when it joins."""
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as sockets:
            text = sockets.read()
        for worker in self.workers:
            if worker.joins is None and f"@treadle-{worker.pid}-" in text:
                worker.joins = time.monotonic()

    def wait_for_workers(self, count, deadline):
        while len(self.workers) < count and self.launcher.poll() is None and time.monotonic() < deadline:
            self.find_workers()
        return len(self.workers) >= count

    def output(self):
        return "".join(f"{at - self.started:8.3f} {name} {line}\n" for at, name, line in sorted(self.lines))

    def first_line(self, pattern, since=0.0):
        """When a line that holds `pattern` was read, or None."""
        times = [at for at, _, line in self.lines if at >= since and re.search(pattern, line)]
        return min(times) if times else None

    def error_lines(self, rank=None):
        prefix = "treadle run: " if rank is None else f"[{rank}] "
        return [line[len(prefix):] for _, name, line in sorted(self.lines) if name == "err" and line.startswith(prefix)]

    def finish(self, deadline):
        """Waits for the launcher and all it wrote; False when the deadline came first."""
        try:
            self.launcher.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
        for reader in self.readers:
            reader.join(max(0.0, deadline - time.monotonic()))
        return not any(reader.is_alive() for reader in self.readers)

    def unfinished(self, limit_s):
        """Why `finish` returned False after `limit_s`."""
        code = self.launcher.returncode
        return f"it did not end within {limit_s} s" if code is None else f"exit code {code}, and a process still holds its output"

    def processes(self):
        """Living processes of the job, found by session and by mark: (pid, command)."""
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:
                    name, rest = file.read().split("(", 1)[1].rsplit(")", 1)
                state, _, _, session = rest.split()[:4]
                with open(f"/proc/{entry}/environ", "rb") as file:
                    marked = f"{MARK}={self.mark}".encode() in file.read().split(b"\0")
            except OSError:
                continue
            if (marked or int(session) == self.launcher.pid) and state != "Z":
                found.append((int(entry), name))
        return found

    def leftovers(self, kept=()):
        """What is left of an ended job, one sentence each. `kept`: names in its folder that may stay."""
        deadline = time.monotonic() + HANGS_S  # the kernel clears away what has ended in its own time
        while (left := self._left(kept)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def _left(self, kept):
        pids = "|".join(str(pid) for pid in [self.launcher.pid, *(worker.pid for worker in self.workers)])
        ours = re.compile(rf"(?<!\d)({pids})(?!\d)")
        left = [f"process {pid} ({name}) is left" for pid, name in self.processes()]
        with open("/proc/net/unix", encoding="utf-8", errors="replace") as sockets:
            names = [line.split()[7] for line in sockets if len(line.split()) > 7]
        left += [f"socket {name} is left" for name in names if ours.search(name) or self.folder in name]
        # Other programs make files here too: ours bear a process's number, or a name of ours that is young.
        numbered = re.compile(rf"(?<![0-9A-Za-z])({pids})(?![0-9A-Za-z])")  # and not by chance, within a name of letters
        for folder in ("/dev/shm", "/tmp"):
            left += [f"file {folder}/{name} is left" for name in os.listdir(folder) if numbered.search(name)]
        with open("/proc/sysvipc/shm", encoding="ascii") as segments:
            left += [f"shared memory {line.split()[1]} is left" for line in segments if line.split()[4] in pids.split("|")]
        left += [f"file {name} is left" for name in os.listdir(self.folder) if name not in kept]
        return left

    def close(self):
        """Ends what should have ended by itself."""
        with self.lock:
            self.watches = []  # their actions use the workers' descriptors
        for pid, _ in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.finish(time.monotonic() + HANGS_S)
        for worker in self.workers:
            os.close(worker.fd)
        for stream in (self.launcher.stdout, self.launcher.stderr):
            stream.close()

"""Part four of a soak: four threads of each worker call random workers without a pause, with small values, references, and
buffers of up to 8 MB over every channel, in memory of their own and in memory shared with their peers. One to three workers
at a time are stopped for up to three seconds. That is less than the heartbeat timeout, so no worker may be lost, every
result is exact, every call ends within its time limit, and memory stays within its limits: those of each worker's options,
which it compares with its metrics fifty times a second, and a peak of the whole process. Standard library only; one thread.
"""
import re
import signal
import time

from workers import Failure

THREADS = 4
STALL_S = (0.2, 3.0)  # the heartbeat timeout is 5 s
PAUSE_S = (0.0, 0.5)  # between two stalls
STALLED = 3           # at most, at a time
# How long after its time limit a call may end. A caller that is itself stopped when the limit passes is late by the rest of
# its stop. The rest is for the threads of eight workers, 32 that call and as many that serve, which share two cores.
LATENESS_S = STALL_S[1] + 2
LARGEST_KB = 8000
# Limits of each worker's options, so low that they are reached: callers wait for credits at times, and buffers go through
# sockets when the blocks are used up.
IN_FLIGHT_MB = 4
MEMORY_MB = 32
# Resident memory of one worker, at most. Its blocks, and to and from each of seven peers a message of 4 MB of credits or one
# larger one, requests and answers: more than that. As most buffers are small, it comes to much less.
PEAK_MB = 320


def options(unbounded):
    """Of each worker. Under a sanitizer everything takes longer, and lateness is that of all other parts."""
    lateness = [] if unbounded else ["--lateness", str(LATENESS_S)]
    return ["--threads", str(THREADS), "--no-groups", "--largest-kb", str(LARGEST_KB), "--memory-mb", str(MEMORY_MB),
            "--in-flight-mb", str(IN_FLIGHT_MB), *lateness]


def peak_mb(worker):
    """The peak resident memory of the process (VmHWM)."""
    with open(f"/proc/{worker.process.pid}/status", encoding="ascii", errors="replace") as status:
        found = re.search(r"VmHWM:\s+(\d+)", status.read())
    if not found:
        raise Failure(f"{worker.name} has ended: {worker.end()}")
    return int(found[1]) / 1024


class Flood:
    def __init__(self, soak, world):
        """`soak` draws, prints and counts; `world` is a job of a fixed size."""
        self.soak, self.world, self.random = soak, world, soak.random
        self.stalled = []  # the last ones: none is stopped twice in a row, which could be longer than the heartbeat timeout

    def run(self, seconds):
        self.world.await_start()
        end = time.monotonic() + seconds
        self.world.say(f"run {self.soak.seed()} {1 << 60}")
        reported = time.monotonic()
        while time.monotonic() < end:
            self.soak.check_time("part four")
            self.stall()
            if time.monotonic() > reported + 10:
                reported = time.monotonic()
                self.soak.tell(f"flood: calls={self.soak.calls + self.world.total('calls')} stalls={self.soak.stalls} "
                               f"rss_mb={self.world.resident_mb():.1f} blocks_mb={self.most_mb('blocks_kb'):.1f} "
                               f"unanswered_mb={self.most_mb('unanswered_kb'):.1f}")
        self.world.say("stop")
        self.check()
        self.world.shut_down()

    def most_mb(self, key):
        """The most that one worker has counted so far."""
        return max(worker.at.get(key, 0) for worker in self.world.workers) / 1024

    def stall(self):
        """Stops some workers for a while, and wakes them."""
        rested = [worker for worker in self.world.workers if worker not in self.stalled]
        self.stalled = self.random.sample(rested, self.random.randint(1, min(STALLED, len(rested))))
        try:
            for worker in self.stalled:
                worker.signal(signal.SIGSTOP)
            time.sleep(self.random.uniform(*STALL_S))
        finally:
            for worker in self.stalled:
                worker.signal(signal.SIGCONT)
        self.soak.stalls += len(self.stalled)
        self.world.watch(self.random.uniform(*PAUSE_S))

    def check(self):
        """No worker is lost, nothing is left, and none has taken too much memory."""
        if not self.soak.stalls or not self.world.total("calls"):
            raise Failure("the flood made no call or stopped no worker")
        for worker, lost in zip(self.world.workers, self.world.losses()):
            if lost:
                raise Failure(f"{worker.name} has lost {sorted(lost)}, which were stopped for {STALL_S[1]} s at most")
        self.world.check()
        self.soak.check_settled(self.soak.settle(self.world))
        self.soak.memory.pop()
        self.soak.peak_mb = max(peak_mb(worker) for worker in self.world.workers)
        self.soak.blocks_mb, self.soak.unanswered_mb = self.most_mb("blocks_kb"), self.most_mb("unanswered_kb")
        if self.soak.peak_mb > PEAK_MB and not self.soak.options.unbounded:
            raise Failure(f"a worker took {self.soak.peak_mb:.0f} MB at its peak, {PEAK_MB} are allowed")

"""Part four of a soak: four threads of each worker call random workers without a pause, while one to three workers at a
time are stopped for up to three seconds. That is less than the heartbeat timeout, so no worker may be lost, every result is
exact, every call ends within its time limit, and memory stays within its limits. Standard library only; one thread.
"""
import re
import signal
import time

from workers import Failure

THREADS = 4
STALL_S = (0.2, 3.0)  # the heartbeat timeout is 5 s
PAUSE_S = (0.0, 0.5)  # between two stalls
STALLED = 3           # at most, at a time
# Resident memory of one worker, at most. At its peak it holds the requests of 7 peers and their answers, of 4 threads each
# with up to 4 blobs of 3 MB: 2 * 7 * 4 * 4 * 3 MB = 672 MB if all were of the largest size. Most are far smaller: ten
# minutes came to 73 MB.
PEAK_MB = 256


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
                               f"rss_mb={self.world.resident_mb():.1f}")
        self.world.say("stop")
        self.check()
        self.world.shut_down()

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
        if self.soak.peak_mb > PEAK_MB and not self.soak.options.unbounded:
            raise Failure(f"a worker took {self.soak.peak_mb:.0f} MB at its peak, {PEAK_MB} are allowed")

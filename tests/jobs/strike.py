"""One strike of kill.py: a job of hybrid_digits, one signal to one worker, and what the others must do then."""
import collections
import re
import select
import signal
import time

from watched_job import HANGS_S, POLL_S

ROLES = ["master", "ps", "trainer0", "trainer1"]  # by rank
SIGNALS = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}
# Three promises, the only limits here that do more than end a hang. A worker that has joined ends by its own error: a silent
# peer is lost after 7 s at most (docs/guide/guarantees.md). One that is still joining ends within 2 s of the end of another
# one, as the launcher reports that. The launcher does not report a stopped one: then the join timeout of 15 s ends the join,
# and 5 s are for the exit, for which pages of code may have to be read from a disk again.
SLACK_S = 10.0  # for the error and the exit, on a loaded machine too: `make kill` runs no strike again that was late
LOST_LIMIT_S = 7.0 + SLACK_S
JOINING_S = 2.0
ENDED_LIMIT_S = JOINING_S + SLACK_S
JOIN_LIMIT_S = 20.0
GRACE_S = HANGS_S + JOIN_LIMIT_S  # of this job: the workers have to end before the launcher ends them
LAUNCHER_S = HANGS_S + GRACE_S / 2  # after the last of the others: a stopped victim may have half the grace
WATCH_S = 0.02    # how often the watch looks who has begun to join
MOST_LINES = 6    # of a worker about the loss: one for each of the others it loses in the end, and its last word

# The lines that report an event, by role, rank and number of epochs. None: the worker is there.
EVENTS = {
    "forked": None,
    "registered": lambda role, rank, _: rf"^\[0\] .* debug master: worker '{role}' \(rank {rank}\) has registered\b",
    "all-registered": lambda _, __, ___: r"^\[0\] .* debug master: all workers have registered\b",
    "joined": lambda role, rank, _: rf"^\[{rank}\] .* debug {role}: this worker has joined\b",
    "first-epoch": lambda _, __, epochs: rf"^\[0\] .*epoch +1/{epochs}\b",
    "fifth-epoch": lambda _, __, epochs: rf"^\[0\] .*epoch +5/{epochs}\b",
    "last-epoch": lambda _, __, epochs: rf"^\[0\] .*epoch +{epochs}/{epochs}\b",
    "in-shutdown": lambda _, __, ___: r"^\[0\] .* debug master: this worker is in its shutdown\b",
}
WHILE_JOINING = ("forked", "registered", "all-registered")
NO_COMPLAINT = re.compile(r"\[[\d:.]+\] (debug|info) ")  # of what a worker writes to standard error


class Failure(Exception):
    pass


Case = collections.namedtuple("Case", "rank name event index")  # `event` is None for a random moment


def joined_at(job):
    """When all had joined: the master then reports where it writes. None: not yet."""
    return job.first_line(r"^\[0\] run folder ")


def epochs_done(job, epochs):
    """When the master reported the last epoch. None: not yet."""
    return job.first_line(EVENTS["last-epoch"](None, None, epochs))


class Attempt:
    """One job, one signal."""

    def __init__(self, job, epochs, case, moment):
        self.job, self.epochs, self.rank, self.name = job, epochs, case.rank, case.name
        self.event, self.moment = case.event, moment
        self.victim, self.others, self.sent, self.too_late = None, [], 0.0, False

    def run(self):
        if not self.strike() or self.missed_event():
            return None
        phase = self.phase()
        slowest = self.watch()
        if self.job.launcher.returncode == 0 and epochs_done(self.job, self.epochs):
            return None  # the victim was past its last line of code when the signal came
        self.check_ends()
        self.check_launcher()
        left = self.job.leftovers(kept=["run"])
        if left:
            raise Failure("; ".join(left))
        return slowest, phase, self.was_killed_while_joining()

    def strike(self):
        """Sends the signal at the event or the moment; False when that was too late."""
        job = self.job
        deadline = time.monotonic() + HANGS_S
        if not job.wait_for_workers(self.rank + 1, deadline):
            raise Failure(f"rank {self.rank} was not started")
        self.victim = job.workers[self.rank]
        if self.event is None:
            self.wait_for_moment(deadline)
        elif EVENTS[self.event] is None:
            self.hit()
        else:
            self.wait_for_event(deadline)
        if not self.too_late and self.name == "STOP":
            self.too_late = not self.has_stopped()
        if not self.too_late:
            job.wait_for_workers(len(ROLES), deadline)
            self.others = [worker for worker in job.workers[:len(ROLES)] if worker is not self.victim]
            return True
        job.finish(time.monotonic() + HANGS_S)
        if job.launcher.returncode != 0:
            raise Failure(f"the job failed by itself before the signal (exit {job.launcher.returncode})")
        return False

    def wait_for_moment(self, deadline):
        # As few looks at /proc as can be until then: they would slow the job down.
        if self.moment > 0.05:
            self.job.wait_for_workers(len(ROLES), deadline)
        time.sleep(max(0.0, self.job.workers[0].born + self.moment - time.monotonic()))
        self.hit()

    def wait_for_event(self, deadline):
        self.job.wait_for_workers(len(ROLES), deadline)
        pattern = EVENTS[self.event](ROLES[self.rank], self.rank, self.epochs)
        seen = self.job.when(pattern, self.hit).wait(HANGS_S)
        if self.sent == 0.0:
            raise Failure(f"the job ended without the event {self.event}" if seen else
                          f"the event {self.event} did not come within {HANGS_S:.0f} s")

    def hit(self):
        """The signal, on whatever thread sees that it is time."""
        try:
            self.too_late = self.victim.is_over()
            if not self.too_late:
                self.victim.signal(SIGNALS[self.name])
        except ProcessLookupError:
            self.too_late = True
        self.sent = time.monotonic()

    def missed_event(self):
        """Whether all had joined when the signal of an earlier event came."""
        joined = joined_at(self.job)
        return self.event in WHILE_JOINING and joined is not None and joined < self.sent

    def has_stopped(self):
        while not self.victim.is_over():
            try:
                with open(f"/proc/{self.victim.pid}/stat", encoding="utf-8", errors="replace") as file:
                    state = file.read().rsplit(")", 1)[1].split()[0]
            except OSError:
                return False
            if state in "Tt":
                return True
            if time.monotonic() > self.sent + HANGS_S:
                raise Failure(f"the victim did not stop within {HANGS_S:.0f} s: state {state}")
            time.sleep(POLL_S)
        return False

    def phase(self):
        job = self.job
        if any(worker.is_over() for worker in self.others):
            return "after"
        if epochs_done(job, self.epochs):
            return "shutdown"
        return "training" if joined_at(job) else "joining"

    def was_killed_while_joining(self):
        joined = EVENTS["joined"](ROLES[self.rank], self.rank, self.epochs)
        return self.name == "KILL" and self.job.first_line(joined) is None

    def limit(self, worker):
        """When it must have ended."""
        if joined := joined_at(self.job):
            return max(self.sent, joined) + LOST_LIMIT_S
        # It hears of the end, or its join timeout begins, when it joins, and that may be after the signal.
        limit = ENDED_LIMIT_S if self.name == "KILL" else JOIN_LIMIT_S
        return self.sent + HANGS_S if worker.joins is None else max(self.sent, worker.joins) + limit

    def watch(self):
        """Waits until all others have ended; how long the last took, from the signal or its later join."""
        while waited := [worker for worker in self.others if not worker.is_over()]:
            self.job.find_joining()
            for worker in waited:
                if time.monotonic() > self.limit(worker):
                    raise Failure(f"{ROLES[worker.rank]} did not end within {self.limit(worker) - self.sent:.1f} s")
            select.select([worker.fd for worker in waited], [], [], WATCH_S)
        last = max(worker.ended for worker in self.others)
        if not self.job.finish(last + LAUNCHER_S):
            raise Failure(f"the launcher did not end within {LAUNCHER_S:.0f} s of the others")
        return max(0.0, *(worker.ended - max(self.sent, worker.joins or 0.0) for worker in self.others))

    def names_victim(self, text):
        return re.search(rf"\b({ROLES[self.rank]}|rank {self.rank})\b", text) is not None

    def is_half_a_handshake(self, line):
        """While they join: a worker that has not proved who it is cannot be named where its handshake ends."""
        ends = {"STOP": "it did not end its handshake in time", "KILL": "(its|the) connection (closed|broke)"}
        return re.search(f" was refused: {ends[self.name]}", line) is not None and not joined_at(self.job)

    def check_ends(self):
        for worker in self.others:
            name = ROLES[worker.rank]
            said = [line for line in self.job.error_lines(worker.rank) if not NO_COMPLAINT.match(line)]
            errors = [line for line in said if line.startswith("hybrid_digits: ")]
            if unrelated := [line for line in said if not self.names_victim(line) and not self.is_half_a_handshake(line)]:
                raise Failure(f"{name} said what has nothing to do with {ROLES[self.rank]}: {unrelated}")
            if len(said) > MOST_LINES:
                raise Failure(f"{name} said it in {len(said)} lines: {said}")
            if self.fate_of(worker.rank) == "well":
                if errors:
                    raise Failure(f"{name} said an error and ended with 0")
                if not epochs_done(self.job, self.epochs):
                    raise Failure(f"{name} ended with 0 before the job was over")
            elif not errors:
                raise Failure(f"{name} ended without an error line")
            elif not self.names_victim(errors[-1]):
                raise Failure(f"{name}'s error does not name {ROLES[self.rank]} or rank {self.rank}: {errors[-1]}")

    def fate_of(self, rank):
        """"well" or "error", from the launcher's summary; anything else (a crash, ended by the launcher) is a failure."""
        summary = (self.job.error_lines() or [""])[-1]
        for group in summary.split("; ")[1:]:
            found = re.match(r"ranks? ([\d, and-]*\d) (.*)", group)
            if not found or rank not in ranks_in(found[1]):
                continue
            if re.fullmatch(r"(had )?ended well", found[2]):
                return "well"
            if re.fullmatch(r"then ended with exit code \d+", found[2]):
                return "error"
            raise Failure(f"{ROLES[rank]} {found[2]}")
        raise Failure(f"the launcher does not say what became of {ROLES[rank]}")

    def check_launcher(self):
        code = self.job.launcher.returncode
        if code <= 0:
            raise Failure(f"the launcher's exit code is {code}")
        summary = (self.job.error_lines() or [""])[-1]
        how = "killed by SIGKILL" if self.name == "KILL" else "stopped by SIGSTOP"
        wanted = rf"rank {self.rank} \(({ROLES[self.rank]}, )?pid {self.victim.pid}\) was {how} first\b"
        if not re.match(wanted, summary):
            raise Failure(f"the launcher does not name {ROLES[self.rank]} as the first to fail: {summary}")


def ranks_in(text):
    """The numbers of "0, 1 and 3" or "0-3"."""
    ranks = set()
    for first, last in re.findall(r"(\d+)(?:-(\d+))?", text):
        ranks.update(range(int(first), int(last or first) + 1))
    return ranks

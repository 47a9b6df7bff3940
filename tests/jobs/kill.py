#!/usr/bin/env python3
"""Kills (SIGKILL) and stops (SIGSTOP) each process of the hybrid_digits job at random moments and sees that the rest end.

The moments are drawn evenly from the victim's life in a normal run, counted from the first fork, so that joining,
forward, backward, step and shutdown are all hit. After the signal, every other worker must end by itself within 10 s
(before all have joined: within 20 s, which are the join timeout of 15 s and what it takes to be gone: the pages of code
that an exit needs may have to be read from a disk again), the launcher must exit with an error that names the victim as
the first to fail, and no process, socket, shared memory or file may be left.

How a worker may end:
  * with an exit code above 0, and as its last error line `hybrid_digits: ...` with the victim's name or rank in it; so
    has each of the few lines that it writes to standard error, but for one of a handshake that the victim was stopped
    in;
  * with 0 and without such a line, when the job was over: the last epoch had been told, which the master does when all
    trainers have reported it. Then the end of the shutdown may have been decided before the signal, and a worker that
    learnt of it has nothing to complain of. (A worker that did not learn of it before the victim was lost ends with an
    error: both may be seen in one run.) Exit 0 any earlier is a failure.
When the victim had ended before the signal, nothing was tested, and another moment is drawn.
"""
import argparse
import collections
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time

from watched_job import POLL_S, Job

ROLES = ["master", "ps", "trainer0", "trainer1"]  # by rank
SIGNALS = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}
LOST_LIMIT_S = 10.0
JOIN_LIMIT_S = 20.0
GRACE_S = 50      # longer than starting and joining take: the workers have to end before the launcher ends them
LAUNCHER_S = 30   # how long the launcher may take after the last of the others: half its grace, if all of them ended well
START_S = 30      # until there are workers at all
WATCH_S = 0.02    # how often the ends are looked for
MAX_DRAWS = 20    # for one kill
MOST_LINES = 6    # of a worker about the loss: one for each of the others it loses in the end, and its last word


class Failure(Exception):
    pass


def joined_at(job):
    """When all had joined, as the master then tells where it writes; None: not yet."""
    return job.first_line(r"^\[0\] run folder ")


class Driver:
    def __init__(self, options, folder):
        self.options, self.folder = options, folder
        self.number = 0
        self.lives = [0.0] * len(ROLES)  # how long each rank lives in a normal run, from the first fork

    def start(self):
        self.number += 1
        folder = os.path.join(self.folder, str(self.number))
        os.mkdir(folder)
        binaries = os.path.join(os.path.abspath(self.options.build), "bin")
        return Job([os.path.join(binaries, "treadle"), "run", "--grace", str(GRACE_S), "-n", str(len(ROLES)), "--",
                    os.path.join(binaries, "hybrid_digits"), "--run-folder", os.path.join(folder, "run"),
                    "--epochs", str(self.options.epochs)], folder, {"MPLCONFIGDIR": self.folder})

    def epochs_done(self, job):
        return job.first_line(rf"^\[0\] .*epoch +{self.options.epochs}/{self.options.epochs}\b")

    def measure(self):
        """A run that nobody disturbs."""
        job = self.start()
        try:
            job.wait_for_workers(len(ROLES), time.monotonic() + START_S)
            deadline = time.monotonic() + 120
            while not all([worker.is_over() for worker in job.workers]) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            if not job.finish(deadline) or job.launcher.returncode != 0:
                raise Failure("an undisturbed run failed:\n" + job.output())
            self.learn(job)
            if left := job.leftovers(kept=["run"]):
                raise Failure("an undisturbed run left something: " + "; ".join(left))
        finally:
            job.close()

    def learn(self, job):
        """What a run that came to its end tells of lives."""
        joined = joined_at(job)
        ended = self.epochs_done(job)
        if not joined or not ended or len(job.workers) != len(ROLES):
            raise Failure("an undisturbed run did not tell its epochs:\n" + job.output())
        self.lives = [worker.ended - job.workers[0].born for worker in job.workers]

    def kill(self, rank, name, index):
        """One real kill; returns (seconds until the last of the others had ended, phase, moment)."""
        for attempt in range(MAX_DRAWS):
            generator = random.Random(f"{self.options.seed} {rank} {name} {index} {attempt}")
            moment = self.options.moment if self.options.moment is not None else generator.random() * self.lives[rank]
            job = self.start()
            try:
                result = Attempt(self, job, rank, name, moment).run()
            except Failure as failure:
                raise Failure(f"{failure}\n  seed {self.options.seed}, {ROLES[rank]}, SIG{name}, kill {index + 1}, "
                              f"attempt {attempt + 1}, {moment:.4f} s after the first fork\n"
                              f"  again: --seed {self.options.seed} --only {ROLES[rank]}:{name} --moment {moment:.4f}\n"
                              f"--- output, seconds since the start\n{job.output()}---") from None
            finally:
                job.close()
                shutil.rmtree(job.folder, ignore_errors=True)
            if result:
                return (*result, moment)
        raise Failure(f"{ROLES[rank]} had always ended before the signal, {MAX_DRAWS} times")


class Attempt:
    """One job, one signal."""

    def __init__(self, driver, job, rank, name, moment):
        self.driver, self.job, self.rank, self.name, self.moment = driver, job, rank, name, moment
        self.victim, self.others, self.sent = None, [], 0.0

    def run(self):
        if not self.strike():
            return None
        phase = self.phase()
        slowest = self.watch()
        self.check_ends()
        self.check_launcher()
        left = self.job.leftovers(kept=["run"])
        if left:
            raise Failure("; ".join(left))
        return slowest, phase

    def strike(self):
        """Sends the signal at the moment; False when it came too late."""
        job = self.job
        deadline = time.monotonic() + START_S
        if not job.wait_for_workers(1, deadline):
            raise Failure("no worker was started")
        # As few looks at /proc as can be until then: they would slow the job down.
        wanted = job.workers[0].born + self.moment
        if not job.wait_for_workers(self.rank + 1, deadline):
            raise Failure(f"rank {self.rank} was not started")
        self.victim = job.workers[self.rank]
        if self.moment > 0.05:
            job.wait_for_workers(len(ROLES), deadline)
        time.sleep(max(0.0, wanted - time.monotonic()))
        self.too_late = self.victim.is_over()
        if not self.too_late:
            self.victim.signal(SIGNALS[self.name])
        self.sent = time.monotonic()
        if not self.too_late and self.name == "STOP":
            self.too_late = not self.has_stopped()
        if not self.too_late:
            job.wait_for_workers(len(ROLES), deadline)
            self.others = [worker for worker in job.workers[:len(ROLES)] if worker is not self.victim]
            return True
        job.finish(time.monotonic() + 60)
        if job.launcher.returncode != 0:
            raise Failure(f"the job failed by itself before the signal (exit {job.launcher.returncode})")
        return False

    def has_stopped(self):
        while not self.victim.is_over():
            try:
                with open(f"/proc/{self.victim.pid}/stat", encoding="utf-8", errors="replace") as file:
                    state = file.read().rsplit(")", 1)[1].split()[0]
            except OSError:
                return False
            if state in "Tt":
                return True
            if time.monotonic() > self.sent + 5:
                raise Failure(f"the victim does not stop: state {state}")
            time.sleep(POLL_S)
        return False

    def phase(self):
        job = self.job
        if any(worker.is_over() for worker in self.others):
            return "after"
        if self.driver.epochs_done(job):
            return "shutdown"
        return "training" if joined_at(job) else "joining"

    def limit(self, worker):
        """When it must have ended."""
        if joined := joined_at(self.job):
            return max(self.sent, joined) + LOST_LIMIT_S
        # Its join timeout begins when it joins, and that may be after the signal.
        return self.sent + START_S if worker.joins is None else max(self.sent, worker.joins) + JOIN_LIMIT_S

    def watch(self):
        """Waits until all others have ended; how long the last took, from the signal or its later join."""
        while waited := [worker for worker in self.others if not worker.is_over()]:
            self.job.find_joining()
            for worker in waited:
                if time.monotonic() > self.limit(worker):
                    raise Failure(f"{ROLES[worker.rank]} did not end within {self.limit(worker) - self.sent:.1f} s")
            time.sleep(WATCH_S)
        last = max(worker.ended for worker in self.others)
        if not self.job.finish(last + LAUNCHER_S):
            raise Failure(f"the launcher did not end within {LAUNCHER_S} s of the others")
        return max(0.0, *(worker.ended - max(self.sent, worker.joins or 0.0) for worker in self.others))

    def names_victim(self, text):
        return re.search(rf"\b({ROLES[self.rank]}|rank {self.rank})\b", text) is not None

    def is_half_a_handshake(self, line):
        """A victim that was stopped before it had said who it is cannot be named where its handshake is given up."""
        half = "was refused: it did not end its handshake in time" in line
        return half and self.name == "STOP" and not joined_at(self.job)

    def check_ends(self):
        for worker in self.others:
            name = ROLES[worker.rank]
            said = self.job.error_lines(worker.rank)
            errors = [line for line in said if line.startswith("hybrid_digits: ")]
            if unrelated := [line for line in said if not self.names_victim(line) and not self.is_half_a_handshake(line)]:
                raise Failure(f"{name} said what has nothing to do with {ROLES[self.rank]}: {unrelated}")
            if len(said) > MOST_LINES:
                raise Failure(f"{name} said it in {len(said)} lines: {said}")
            if self.fate_of(worker.rank) == "well":
                if errors:
                    raise Failure(f"{name} said an error and ended with 0")
                if not self.driver.epochs_done(self.job):
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


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10, help="kills for each role and signal [10]")
    parser.add_argument("--seed", type=int, default=None, help="of the moments [drawn]")
    parser.add_argument("--build", default="build/release", help="the build folder [build/release]")
    parser.add_argument("--epochs", type=int, default=20, help="of the job: how much of its life is training [20]")
    parser.add_argument("--only", metavar="ROLE:SIGNAL", help="one role and signal, for example ps:STOP")
    parser.add_argument("--moment", type=float, help="seconds after the first fork, instead of a drawn one")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
    cases = [(rank, name) for rank in range(len(ROLES)) for name in SIGNALS]
    if options.only:
        cases = [case for case in cases if options.only == f"{ROLES[case[0]]}:{case[1]}"]
        if not cases:
            parser.error("--only wants one of " + ", ".join(f"{role}:{name}" for role in ROLES for name in SIGNALS))
    return options, cases


def main():
    options, cases = parse()
    print(f"kill: seed {options.seed}, {options.runs} runs for each of {len(cases)} roles and signals", flush=True)
    phases, kills, slowest, failed = collections.Counter(), 0, 0.0, 0
    with tempfile.TemporaryDirectory(prefix="treadle-kill-") as folder:
        driver = Driver(options, folder)
        try:
            driver.measure()
            print(f"kill: a normal run takes {driver.lives[0]:.1f} s from the first fork, the others end after "
                  f"{min(driver.lives):.1f} s", flush=True)
        except Failure as failure:
            print(f"kill: {failure}", flush=True)
            cases, failed = [], 1
        for index in range(options.runs):
            for rank, name in cases:
                try:
                    took, phase, moment = driver.kill(rank, name, index)
                except Failure as failure:
                    failed += 1
                    print(f"kill: FAILED {failure}", flush=True)
                    continue
                kills += 1
                phases[phase] += 1
                slowest = max(slowest, took)
                print(f"kill {index + 1:2}/{options.runs}: SIG{name} of {ROLES[rank]:8} at {moment:6.3f} s ({phase}): "
                      f"the others ended {took:.2f} s later", flush=True)
    for phase in ("joining", "training", "shutdown", "after"):
        print(f"  {phase:8} {phases[phase]:3} {'#' * phases[phase]}")
    # A full run is one that has hit everything; a few kills need not.
    unhit = [phase for phase in ("joining", "training", "shutdown") if not phases[phase]]
    if options.runs >= 10 and not options.only and unhit:
        print("kill: no kill hit " + ", ".join(unhit), flush=True)
        failed += 1
    good = failed == 0 and kills > 0
    print(f"kill: {'ok' if good else 'FAILED'} kills={kills} slowest={slowest:.1f}s", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

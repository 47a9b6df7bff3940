#!/usr/bin/env python3
"""Kills (SIGKILL) and stops (SIGSTOP) each process of the hybrid_digits job and checks that the rest end by themselves.

Without options the test strikes eight times: each of the four roles with both signals, each at a fixed event of the
job. The eight hit all events, and nothing is drawn by chance. `--events` lists them.

    forked          the launcher has forked the victim
    registered      the victim has registered at the rendezvous (rank 0 logs it)
    all-registered  the last worker has registered, and all connect to each other (rank 0 logs it)
    joined          the victim has joined the job (it logs that)
    first-epoch     the master has reported the first epoch
    fifth-epoch     the master has reported the fifth epoch
    last-epoch      the master has reported the last epoch
    in-shutdown     the master has entered its shutdown (it logs that); the others did so before

The workers log at the level debug (TREADLE_LOG). The thread that reads the line of an event sends the signal.

`--runs N` is a storm: N strikes for each role and signal. The seed draws their order, and the order of the events of
each role and signal, so that eight runs are every combination. `--random` strikes at moments instead, which are drawn
evenly from the victim's life in a normal run, counted from the first fork. `--storms N` is N storms, one after the other,
each with the next seed.

After the signal, every other worker must end by itself: within the 7 s that are promised, or the 2 s when the victim is killed
before all have joined, and 10 s of slack; within 20 s when it is stopped before that (strike.py). The launcher must exit with
an error that names the victim as the first to fail. No process, socket, shared memory or file may be left.

The slowest end after a SIGKILL while joining is printed apart (`slowest_joining=`): 2 s are promised. `--strict` fails a
strike beyond them. Before the first strike it runs one job to its end and kills one while it joins, so that no strike
reads programs from a cold disk. Use it on a machine that does nothing else: the slack is for the load of others.

How a worker may end:
  * With an exit code above 0. Its last error line is `hybrid_digits: ...` with the victim's name or rank. Each warning
    and error that it logs names the victim too; except for a handshake that the victim did not complete.
  * With 0 and without such a line, after the last epoch was reported: then the job was over. The end of the shutdown may
    have been decided before the signal, and a worker that learnt of it has nothing to complain of. (A worker that did
    not learn of it before it lost the victim ends with an error. One run may show both.) Exit 0 any earlier is a failure.
When the victim had ended before the signal, nothing was tested, and the test tries again.
"""
import argparse
import collections
import os
import random
import shutil
import sys
import tempfile
import time

from strike import EVENTS, GRACE_S, JOINING_S, ROLES, SIGNALS, Attempt, Case, Failure, epochs_done, joined_at
from watched_job import HANGS_S, POLL_S, Job

MAX_TRIES = 20  # for one kill
# Where each role and signal strikes without options: together at all events.
FIXED = {
    ("master", "KILL"): "all-registered", ("master", "STOP"): "fifth-epoch",
    ("ps", "KILL"): "first-epoch", ("ps", "STOP"): "joined",
    ("trainer0", "KILL"): "in-shutdown", ("trainer0", "STOP"): "forked",
    ("trainer1", "KILL"): "last-epoch", ("trainer1", "STOP"): "registered",
}


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
                    "--epochs", str(self.options.epochs)], folder,
                   {"MPLCONFIGDIR": self.folder, "TREADLE_LOG": "debug"})

    def measure(self):
        """A run that nobody disturbs."""
        job = self.start()
        try:
            job.wait_for_workers(len(ROLES), time.monotonic() + HANGS_S)
            deadline = time.monotonic() + 2 * HANGS_S
            while not all([worker.is_over() for worker in job.workers]) and time.monotonic() < deadline:
                time.sleep(POLL_S)
            if not job.finish(deadline) or job.launcher.returncode != 0:
                raise Failure("an undisturbed run failed:\n" + job.output())
            self.learn(job)
            if left := job.leftovers(kept=["run"]):
                raise Failure("an undisturbed run left something: " + "; ".join(left))
        finally:
            job.close()

    def warm_up(self):
        """What the strikes will run has been run, and is in memory."""
        self.measure()
        self.kill(Case(len(ROLES) - 1, "KILL", "all-registered", 0))

    def learn(self, job):
        """The lives in a run that came to its end."""
        joined = joined_at(job)
        ended = epochs_done(job, self.options.epochs)
        if not joined or not ended or len(job.workers) != len(ROLES):
            raise Failure("an undisturbed run did not report its epochs:\n" + job.output())
        self.lives = [worker.ended - job.workers[0].born for worker in job.workers]

    def draw(self, case, attempt):
        """A moment of the victim's life."""
        if self.options.moment is not None:
            return self.options.moment
        generator = random.Random(f"{self.options.seed} {case.rank} {case.name} {case.index} {attempt}")
        return generator.random() * self.lives[case.rank]

    def kill(self, case):
        """One real kill: (seconds until the last of the others had ended, phase, SIGKILL while it joined, where it struck)."""
        role = ROLES[case.rank]
        for attempt in range(MAX_TRIES):
            moment = None if case.event else self.draw(case, attempt)
            where = case.event or f"{moment:.4f} s"
            job = self.start()
            try:
                result = Attempt(job, self.options.epochs, case, moment).run()
            except Failure as failure:
                again = f"--event {case.event}" if case.event else f"--moment {moment:.4f}"
                raise Failure(f"{failure}\n  SIG{case.name} of {role} at {where}, kill {case.index + 1}, "
                              f"attempt {attempt + 1}, seed {self.options.seed}\n"
                              f"  again: --only {role}:{case.name} {again}\n"
                              f"--- output, seconds since the start\n{job.output()}---") from None
            finally:
                job.close()
                shutil.rmtree(job.folder, ignore_errors=True)
            if result:
                return (*result, where)
        raise Failure(f"{role} had always ended before SIG{case.name} at {case.event or 'its moments'}, "
                      f"{MAX_TRIES} times")


def fixed_cases(options):
    return [Case(rank, name, options.event or FIXED[role, name], 0)
            for rank, role in enumerate(ROLES) for name in SIGNALS]


def storm_cases(options):
    """Each role and signal meets the events in an order of its own; the seed draws that, and the order of all."""
    cases = []
    for rank, role in enumerate(ROLES):
        for name in SIGNALS:
            generator = random.Random(f"{options.seed} {role} {name}")
            events = [options.event] if options.event else generator.sample(list(EVENTS), len(EVENTS))
            for index in range(options.runs):
                event = None if options.random else events[index % len(events)]
                cases.append(Case(rank, name, event, index))
    random.Random(options.seed).shuffle(cases)
    return cases


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", action="store_true", help="list the fixed eight, and kill nobody")
    parser.add_argument("--runs", type=int, help="a storm: strikes for each role and signal")
    parser.add_argument("--seed", type=int, help="of a storm, of the first one of several [drawn]")
    parser.add_argument("--storms", type=int, default=1, help="so many, each with the next seed [1]")
    parser.add_argument("--strict", action="store_true",
                        help=f"after a SIGKILL while joining, the others must end within {JOINING_S:.0f} s")
    parser.add_argument("--random", action="store_true", help="a storm at random moments, not at events [--runs 10]")
    parser.add_argument("--moment", type=float, help="seconds after the first fork, instead of an event [--runs 1]")
    parser.add_argument("--only", metavar="ROLE:SIGNAL", help="one role and signal, for example ps:STOP")
    parser.add_argument("--event", choices=list(EVENTS), help="all strikes at this event")
    parser.add_argument("--build", default="build/dev", help="the build folder [build/dev]")
    parser.add_argument("--epochs", type=int, default=20, help="of the job: how much of its life is training [20]")
    options = parser.parse_args()
    if options.event and (options.random or options.moment is not None):
        parser.error("--event is for strikes at events, --random and --moment for others")
    if options.storms != 1 and options.runs is None and not options.random:
        parser.error("--storms is for storms: it needs --runs or --random")
    if options.storms < 1:
        parser.error("--storms must be at least 1")
    if options.epochs < 5:
        parser.error("--epochs must be at least 5: the fifth epoch is an event")
    if options.runs is None and (options.random or options.moment is not None):
        options.runs = 1 if options.moment is not None else 10
    options.random = options.random or options.moment is not None
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
    if not cases_of(options):
        parser.error("--only needs one of " + ", ".join(f"{role}:{name}" for role in ROLES for name in SIGNALS))
    return options


def cases_of(options):
    cases = storm_cases(options) if options.runs is not None else fixed_cases(options)
    return [case for case in cases if options.only in (None, f"{ROLES[case.rank]}:{case.name}")]


class Tally:
    """Runs the cases and counts what came of them."""

    def __init__(self, cases, strict):
        self.cases, self.strict, self.kills, self.failed = cases, strict, 0, 0
        self.slowest, self.slowest_joining = 0.0, None
        self.hits = collections.Counter()

    def run(self, driver):
        for number, case in enumerate(self.cases, 1):
            try:
                took, phase, joining, where = driver.kill(case)
            except Failure as failure:
                self.failed += 1
                print(f"kill: FAILED {failure}", flush=True)
                continue
            self.kills += 1
            self.hits[case.event or phase] += 1
            self.slowest = max(self.slowest, took)
            if joining:
                self.slowest_joining = max(self.slowest_joining or 0.0, took)
                self.check_joining(case, where, took, driver.options.seed)
            print(f"kill {number:2}/{len(self.cases)}: SIG{case.name} of {ROLES[case.rank]:8} at {where:14} ({phase}): "
                  f"the others ended {took:.2f} s later", flush=True)

    def check_joining(self, case, where, took, seed):
        if self.strict and took > JOINING_S:
            self.failed += 1
            print(f"kill: FAILED the others ended {took:.2f} s after SIGKILL of {ROLES[case.rank]} at {where} while joining, "
                  f"{JOINING_S:.0f} s are promised; seed {seed}", flush=True)

    def report(self, random_moments):
        phases = ("joining", "training", "shutdown", "after")
        for name in phases if random_moments else EVENTS:
            if random_moments or self.hits[name]:
                print(f"  {name:14} {self.hits[name]:3} {'#' * self.hits[name]}")


def run_cases(options, cases):
    """What came of them, with a line of its own."""
    storm = options.runs is not None
    print(f"kill: {len(cases)} strikes at {'random moments' if options.random else 'events'}"
          f"{f', seed {options.seed}' if storm else ''}", flush=True)
    tally = Tally(cases, options.strict)
    with tempfile.TemporaryDirectory(prefix="treadle-kill-") as folder:
        driver = Driver(options, folder)
        try:
            if options.strict:
                driver.warm_up()
            elif options.random:
                driver.measure()
            if options.random:
                print(f"kill: a normal run takes {driver.lives[0]:.1f} s from the first fork, the others end after "
                      f"{min(driver.lives):.1f} s", flush=True)
            tally.run(driver)
        except Failure as failure:
            print(f"kill: {failure}", flush=True)
            tally.failed += 1
    tally.report(options.random)
    # Many random moments must have hit everything; a few need not. Events are hit, or the strike has failed.
    unhit = [phase for phase in ("joining", "training", "shutdown") if not tally.hits[phase]]
    if options.random and options.runs >= 10 and not options.only and unhit:
        print("kill: no strike hit " + ", ".join(unhit), flush=True)
        tally.failed += 1
    return tally


def main():
    options = parse()
    if options.events:
        for case in cases_of(options):
            print(f"SIG{case.name} of {ROLES[case.rank]:8} at {case.event or 'a random moment'}")
        return 0
    tallies = []
    for _ in range(options.storms):
        tallies.append(run_cases(options, cases_of(options)))
        options.seed += 1
    good = all(tally.failed == 0 and tally.kills > 0 for tally in tallies)
    joining = [tally.slowest_joining for tally in tallies if tally.slowest_joining is not None]
    print(f"kill: {'ok' if good else 'FAILED'} kills={sum(tally.kills for tally in tallies)} "
          f"slowest={max(tally.slowest for tally in tallies):.1f}s "
          f"slowest_joining={f'{max(joining):.2f}s' if joining else 'none'}", flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())

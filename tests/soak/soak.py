#!/usr/bin/env python3
"""A long mixed load on real processes: calls, references passed on between third workers, errors, time limits,
cancellations, coroutines, large buffers over every channel, collectives; then the same while workers are killed.

Part one: rounds of calls on a job of eight workers. Every result is what it must be; after each round no reference is
left anywhere, and what the processes hold is measured. Resident memory and the heaps must not grow by more than
MEMORY_MB from the end of the warm-up on.

Part two: jobs in which a random worker is killed (or stopped until it is given up, and woken) every few seconds. What
the survivors do among themselves stays exact, what needs the lost one fails with its name, and nothing hangs. A group that
has lost a member fails with its name, and a new group of the others works.

Part three: open jobs in which workers are killed or stopped, leave and join. The keeper of a job, which lets them in,
leaves too; that of every second job dies in the end. It has no collectives: a member may not know a newcomer yet.

Part four: a flood of calls by four threads of each worker, while workers are stopped for up to 3 s. No worker is lost. It has
no collectives either: one that waits for a stopped worker holds up all members, so several stops may add up to its time limit.

usage: soak.py [--seed N] [--calls N] [--rounds N] [--kill-seconds N] [--open-seconds N] [--flood-seconds N] [--workers N]
               [--only OPERATION] [--build FOLDER]
"""
import argparse
import os
import random
import signal
import sys
import time
import traceback

from comings import Comings
import flood
from workers import HANGS_S, NOTICED_S, Failure, World, numbers

# Who may use which ways to the others, so that each is used between some two of them. All have TCP for those without
# UNIX sockets.
CHANNELS = ["unix,tcp,lanes,shm,cma", "unix,tcp,shm", "unix,tcp,lanes,shm,cma", "unix,tcp,cma", "unix,tcp,lanes,cma",
            "tcp,lanes", "tcp", "unix,tcp,lanes,shm"]
MEMORY_MB = {"rss": 32, "heap": 6}  # of all workers together; what each may grow from the warm-up to the end
# Freed memory goes back to the system, so that what is resident is what is in use: else glibc keeps some of it for each
# thread and arena, and it takes millions of calls until that grows no more.
ALLOCATOR = {"GLIBC_TUNABLES": "glibc.malloc.tcache_count=0:glibc.malloc.arena_max=2:glibc.malloc.mmap_threshold=131072"}
WARM_UP = 0.25        # of the rounds
RUN_LIMIT_S = 600     # of a round
TOTAL_LIMIT_S = 1200  # of everything
KILL_EVERY_S = (2.0, 5.0)
SURVIVORS = 3         # so many are left when a job of part two is over
OPEN_JOB_S = 30       # of a job of part three
COLLECTIVES = {"together"}  # operations that parts three and four leave out


class Soak:
    def __init__(self, options):
        self.options, self.random = options, random.Random(options.seed)
        self.program = os.path.join(os.path.abspath(options.build), "tests", "soak_program")
        self.begin = time.monotonic()
        self.calls = self.operations = self.fair_errors = self.kills = self.stops = self.leaves = self.joins = 0
        self.keepers = self.left = 0
        self.stalls = 0
        self.slowest_ms, self.peak_mb, self.memory = 0, 0, []
        self.blocks_mb = self.unanswered_mb = 0.0

    def world(self, *options, open_job=False):
        only = ["--only", self.options.only] if self.options.only else []
        return World(self.program, self.options.workers, ["--threads", str(self.options.threads), *only, *options],
                     open_job=open_job,
                     environment=lambda rank: {**ALLOCATOR, "TREADLE_CHANNELS": CHANNELS[rank % len(CHANNELS)]})

    def tell(self, text):
        print(f"soak: {time.monotonic() - self.begin:6.1f} s  {text}", flush=True)

    def seed(self):
        return self.random.randrange(1 << 60)

    # ---- part one

    def rounds(self):
        with self.world() as world:
            world.await_start()
            for index in range(self.options.rounds):
                self.round(world, index)
            self.take_counts(world)
            world.shut_down()
        self.check_memory()

    def round(self, world, index):
        share = self.options.calls // self.options.rounds // len(world.workers)
        world.ask("barrier")
        world.say(f"run {self.seed()} {share}")
        self.watch(world, f"round {index + 1}/{self.options.rounds}")
        world.check()
        self.check_settled(self.settle(world))
        self.tell(f"round {index + 1}/{self.options.rounds}: calls={self.calls + world.total('calls')} "
                  + "".join(f"{key}_mb={value:.1f} " for key, value in self.memory[-1].items()) + "references_left=0")

    def watch(self, world, what):
        """Until all have run; with a line now and then."""
        waited, deadline, told = list(world.workers), time.monotonic() + RUN_LIMIT_S, time.monotonic()
        while waited:
            waited = [worker for worker in waited if not worker.ran()]
            world.check()
            if time.monotonic() > deadline:
                raise Failure(f"{what} took over {RUN_LIMIT_S} s")
            self.check_time(what)
            if time.monotonic() > told + 10:
                told = time.monotonic()
                self.tell(f"{what}: calls={self.calls + world.total('calls')} rss_mb={world.resident_mb():.1f}")
            time.sleep(0.02)

    def check_time(self, what):
        if time.monotonic() > self.begin + TOTAL_LIMIT_S:
            raise Failure(f"not done after {TOTAL_LIMIT_S} s, in {what}; --calls has it make fewer")

    def settle(self, world):
        """What is left at each when references are let go."""
        world.ask("clear")
        rest = [numbers(line) for line in world.ask(f"settle {HANGS_S:.0f}", 2 * HANGS_S)]
        self.memory.append({key: sum(one[key + "_kb"] for one in rest) / 1024 for key in ("rss", "shared", "heap")})
        return rest

    def check_settled(self, rest):
        left = {key: sum(one[key] for one in rest) for key in
                ("owned", "forks", "held", "pending", "calls", "handlers", "waits", "late")}
        self.left += left["owned"] + left["forks"] + left["held"] + left["pending"]
        if any(left.values()):
            raise Failure("left at rest: " + ", ".join(f"{key}={value}" for key, value in left.items() if value)
                          + "\n  " + "\n  ".join(f"w{rank}: {one}" for rank, one in enumerate(rest)))

    def grown(self, key):
        """What it was after the warm-up, and at the end."""
        return [self.memory[at][key] for at in (int(len(self.memory) * WARM_UP), -1)] if self.memory else [0, 0]

    def check_memory(self):
        for key, bound in MEMORY_MB.items():
            before, after = self.grown(key)
            if after > before + bound and not self.options.unbounded:
                raise Failure(f"{key}: {before:.1f} MB after the warm-up, {after:.1f} MB at the end, {bound} more are allowed")

    def take_counts(self, world):
        self.calls += world.total("calls")
        self.operations += world.total("operations")
        self.fair_errors += world.total("errors")
        self.slowest_ms = max([self.slowest_ms, *(worker.at.get("slowest_ms", 0) for worker in world.workers)])

    # ---- part two

    def kills_phase(self):
        end = time.monotonic() + self.options.kill_seconds
        while time.monotonic() < end:
            self.check_time("part two")
            with self.world("--losses") as world:
                world.await_start()
                world.say(f"run {self.seed()} {1 << 60}")
                gone = self.harm(world, end)
                self.check_survivors(world, gone)
                self.take_counts(world)

    def harm(self, world, end):
        """Kills and stops workers until few are left; the names of those that are gone."""
        gone, woken = [], []
        while len(world.workers) > SURVIVORS and time.monotonic() < end:
            world.watch(self.random.uniform(*KILL_EVERY_S))
            victim = self.random.choice(world.workers)
            world.workers.remove(victim)
            world.ask(f"endanger {victim.name}")
            victim.say("endanger *")
            victim.answer("endanger", HANGS_S)
            gone.append(victim.name)
            if self.random.randrange(3) == 0:
                self.stops += 1
                self.tell(f"{victim.name} is stopped, {len(world.workers)} are left")
                victim.signal(signal.SIGSTOP)
                world.await_loss(victim.name)
                victim.heard = time.monotonic()
                victim.signal(signal.SIGCONT)
                woken.append(victim)
            else:
                self.kills += 1
                self.tell(f"{victim.name} is killed, {len(world.workers)} are left")
                victim.kill()
        for name in gone:
            world.await_loss(name)
        for victim in woken:
            self.check_woken(victim, {worker.name for worker in world.workers})
        return gone

    def check_woken(self, victim, others):
        """It learns that it is out: all others are lost to it."""
        missing, deadline = others, time.monotonic() + NOTICED_S
        while missing and time.monotonic() < deadline:
            victim.say("lost")
            missing = others - victim.lost()
            time.sleep(0.02)
        failures = victim.failures
        victim.kill()
        if missing or failures:
            raise Failure(f"{victim.name}, woken, has not lost {sorted(missing)}; {failures[:5]}")

    def check_survivors(self, world, gone):
        world.say("stop")
        for worker, lost in zip(world.workers, world.losses()):
            if lost != set(gone):
                raise Failure(f"gone are {gone}, but {worker.name} has lost {sorted(lost)}")
        self.check_settled(self.settle(world))
        self.memory.pop()
        world.check()
        self.tell(f"{len(gone)} gone, {len(world.workers)} survivors exact, nothing left")
        world.say("leave")

    # ---- part three

    def open_phase(self):
        if self.leaves_out("part three", self.options.open_seconds):
            return
        jobs = max(2, round(self.options.open_seconds / OPEN_JOB_S))
        for job in range(jobs):
            self.check_time("part three")
            with self.world("--losses", "--no-groups", open_job=True) as world:
                Comings(self, world).run(time.monotonic() + self.options.open_seconds / jobs, keeper_dies=job % 2 == 0)
                self.take_counts(world)

    # ---- part four

    def flood_phase(self):
        if self.leaves_out("part four", self.options.flood_seconds):
            return
        with self.world(*flood.options(self.options.unbounded)) as world:
            flood.Flood(self, world).run(self.options.flood_seconds)
            self.take_counts(world)

    # ---- the end

    def leaves_out(self, part, seconds):
        """Whether there is nothing to do in a part without collectives."""
        if self.options.only in COLLECTIVES:
            self.tell(f"{part} is left out: it has no collectives")
        return seconds <= 0 or self.options.only in COLLECTIVES

    def result(self, good):
        rss, heap = self.grown("rss"), self.grown("heap")
        print(f"soak: {'ok' if good else 'FAILED'} calls={self.calls} operations={self.operations} "
              f"seconds={time.monotonic() - self.begin:.0f} seed={self.options.seed} rss_start_mb={rss[0]:.1f} "
              f"rss_end_mb={rss[1]:.1f} heap_start_mb={heap[0]:.1f} heap_end_mb={heap[1]:.1f} references_left={self.left} "
              f"kills={self.kills} stops={self.stops} leaves={self.leaves} joins={self.joins} keepers={self.keepers} "
              f"stalls={self.stalls} peak_mb={self.peak_mb:.0f} blocks_mb={self.blocks_mb:.0f} "
              f"unanswered_mb={self.unanswered_mb:.0f} "
              f"errors={self.fair_errors} slowest_ms={self.slowest_ms}", flush=True)
        return 0 if good else 1


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=None, help="of all that is drawn [drawn]")
    parser.add_argument("--calls", type=int, default=1_000_000, help="of part one, by all workers together [1000000]")
    parser.add_argument("--rounds", "--runs", type=int, default=20, help="parts of them [20]")
    parser.add_argument("--kill-seconds", type=float, default=180, help="how long part two lasts [180]")
    parser.add_argument("--open-seconds", type=float, default=120, help="how long part three lasts [120]")
    parser.add_argument("--flood-seconds", type=float, default=60, help="how long part four lasts [60]")
    parser.add_argument("--workers", type=int, default=8, help="[8]")
    parser.add_argument("--threads", type=int, default=3, help="that call, per worker [3]")
    parser.add_argument("--only", metavar="OPERATION", help="nothing but this one (tests/soak/*_operations.cc)")
    parser.add_argument("--build", default="build/dev", help="the build folder [build/dev]")
    parser.add_argument("--unbounded", action="store_true", help="memory may grow: for sanitizers, which keep what is freed")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
    return options


def main():
    soak = Soak(parse())
    options = soak.options
    soak.tell(f"seed {options.seed}: {options.calls} calls in {options.rounds} rounds by {options.workers} workers, then "
              f"{options.kill_seconds:.0f} s of kills, then {options.open_seconds:.0f} s of comings and goings, then "
              f"{options.flood_seconds:.0f} s of a flood")
    try:
        soak.rounds()
        soak.kills_phase()
        soak.open_phase()
        soak.flood_phase()
    except Failure as failure:
        soak.tell(f"FAILED {failure}")
        return soak.result(False)
    except (Exception, KeyboardInterrupt):  # the last line is promised
        soak.tell(f"FAILED {traceback.format_exc()}")
        return soak.result(False)
    return soak.result(True)


if __name__ == "__main__":
    sys.exit(main())

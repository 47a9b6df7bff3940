#!/usr/bin/env python3
"""The load of the soak over TCP links that a proxy harms: jobs of four workers, one after the other.

  mild    the links are slow, or stand still for a while: nobody may notice but by the time it takes
  severe  the links of one worker are cut, half closed, silenced, or their bytes changed: every call ends right or with an
          error that names whom it concerns, within its time limit, and never with a wrong value; what was done to a link
          costs that link; nothing is left behind
          (no collectives: an operation of a group that is late names several members, or none)
  joining the same while the workers meet, to the links to where they meet too: the job starts, or each says within its
          time limit why not, in one error with a name. What was not harmed, or only slowed down, starts. Some of the
          jobs are open: there each comes in or says why not, and whoever comes after the harm does
          (no collectives: a member may not know all others)

Some jobs have checksums over every byte, the others TLS.

usage: chaos.py [--runs N] [--seed N] [--only KIND] [--harm KIND] [--tls always|never] [--no-blobs] [--lenient]
                [--build FOLDER]
"""
import argparse
import collections
import os
import random
import sys
import time
import traceback

from workers import HANGS_S, SLACK_S, Failure, Worker, World, free_port, numbers

SIZE = 4
CHANNELS = ["tcp", "tcp,lanes"]
TIMEOUT_S, HEARTBEAT_TIMEOUT_S, JOIN_TIMEOUT_S = 8, 3, 10
NOTICED_S = 1.4 * HEARTBEAT_TIMEOUT_S + SLACK_S  # a promise: a silent peer is lost by then (workers.py)
STALL_S = 10  # of a severe run: well above 1.4 times HEARTBEAT_TIMEOUT_S
# Kind, and the limit that the proxy is given with it: milliseconds or bytes.
MILD = [("delay", 10), ("dribble", 30), ("stall", 1500)]
SEVERE = [("flip", 100_000), ("flip", 2_000), ("flip", 64), ("cut", 50_000), ("reset", 50_000), ("half", 50_000),
          ("silence", 0), ("twice", 50_000), ("stall", STALL_S * 1000)]
JOINING = [("flip", 300), ("cut", 300), ("reset", 300), ("half", 300), ("silence", 300), ("twice", 300),
           ("dribble", 3), ("stall", 2000)]
SLOW = ["dribble", "stall"]
ADMISSION_S = 20       # how long one may take to join an open job when it is its turn
MEETING = "127.0.0.2"  # where the proxy stands for who dials 127.0.0.1


class Proxy:
    """proxy_program, which speaks as the workers do. It stands in front of each worker, and of where they meet."""

    def __init__(self, program, seed, size):
        self.worker = Worker(str(seed), [program], {})
        self.did = []
        self.ports = [free_port() for _ in range(size)]
        self.meeting = free_port()
        self.worker.say(f"serve meeting {self.meeting} {MEETING}")
        self.worker.answer("serve", HANGS_S)
        for rank, port in enumerate(self.ports):
            self.worker.say(f"serve w{rank} {port}")
        self.own = [int(self.worker.answer("serve", HANGS_S).split()[2]) for _ in range(size)]

    def environment(self, rank):
        return {"TREADLE_MASTER": f"{MEETING}:{self.meeting}"} if rank > 0 else {}

    def options(self, rank):
        if rank >= len(self.ports):
            return []
        return ["--listen", f"tcp://127.0.0.1:{self.ports[rank]}", "--announce", f"tcp://127.0.0.1:{self.own[rank]}"]

    def say(self, line):
        self.worker.say(line)

    def done(self):
        """What it did since the start: ["flip w2 to 1234", ...]."""
        while not self.worker.answers.empty():
            if line := self.worker.answers.get():
                self.did.append(line.removeprefix("did "))
        return self.did


class Chaos:
    def __init__(self, options):
        self.options, self.random = options, random.Random(options.seed)
        folder = os.path.join(os.path.abspath(options.build), "tests")
        self.soak, self.proxy = os.path.join(folder, "soak_program"), os.path.join(folder, "proxy_program")
        self.begin = time.monotonic()
        self.done = collections.Counter()
        self.runs = self.encrypted = self.calls = self.errors = self.losses = self.refused = self.late = 0
        self.unnoticed = self.slowest_ms = 0

    def tell(self, text):
        print(f"chaos: {time.monotonic() - self.begin:6.1f} s  {text}", flush=True)

    def job(self, proxy, *options, open_job=False):
        environment = {"TREADLE_CHANNELS": self.random.choice(CHANNELS)}
        encrypted = self.random.random() < 0.4 if self.options.tls is None else self.options.tls == "always"
        if encrypted:
            environment["TREADLE_TLS"] = "always"
            self.encrypted += 1
        limits = ["--timeout", str(TIMEOUT_S), "--heartbeat-timeout", str(HEARTBEAT_TIMEOUT_S), "--join-timeout", str(JOIN_TIMEOUT_S)]
        blobs = ["--no-blobs"] if self.options.no_blobs else []
        return World(self.soak, SIZE, [*limits, *blobs, *options], open_job=open_job, port=proxy.meeting,
                     environment=lambda rank: {**environment, **proxy.environment(rank)}, extra=proxy.options)

    def run(self, index):
        kinds = [self.options.only] if self.options.only else ["mild", "severe", "severe", "joining"]
        kind = kinds[index % len(kinds)]
        proxy = Proxy(self.proxy, self.random.randrange(1 << 30), SIZE)
        try:
            said = getattr(self, kind)(proxy)
        except Failure as failure:
            raise Failure(f"run {index + 1} ({kind}), done to the links: {proxy.done()}\n{failure}") from None
        finally:
            proxy.worker.kill()
            self.done.update(line.split()[0] for line in proxy.done())
        self.runs += 1
        self.tell(f"{index + 1}/{self.options.runs} {kind}: {said}")

    def begin_traffic(self, world):
        world.await_start()
        world.say(f"run {self.random.randrange(1 << 60)} {1 << 60}")

    def end_traffic(self, world, what):
        """Stops the calls; which workers each has lost, and what is left of what they held, in words."""
        world.say("stop")
        lost = world.losses()
        world.ask("clear")
        left = []
        for worker, line in zip(world.workers, world.ask(f"settle {HANGS_S:.0f}", 2 * HANGS_S)):
            # A handler hears late that its caller has given up where the word of it cannot come.
            rest = [f"{key}={value}" for key, value in numbers(line).items()
                    if value and key != "late" and not key.endswith("_kb")]
            left += [f"{worker.name} {' '.join(rest)}"] if rest else []
        world.check()
        self.calls += world.total("calls")
        self.errors += world.total("errors")
        self.slowest_ms = max([self.slowest_ms, *(worker.at.get("slowest_ms", 0) for worker in world.workers)])
        return lost, f"{what}: left at {'; '.join(left)}; lost are {lost}{world.said()}" if left else ""

    # ---- kinds of runs

    def mild(self, proxy):
        with self.job(proxy) as world:
            self.begin_traffic(world)
            said = []
            for _ in range(3):
                kind, limit = self.random.choice(MILD)
                at = self.random.randrange(SIZE)
                proxy.say(f"harm w{at} {kind} {limit} {0 if kind != 'stall' else self.random.randrange(3)}")
                said.append(f"{kind} at w{at}")
                world.watch(self.random.uniform(0.5, 1.5))
            for rank in range(SIZE):
                proxy.say(f"calm w{rank}")
            lost, left = self.end_traffic(world, "mild")
            if any(lost) or left:
                raise Failure(f"{said}: lost are {lost}; {left}")
            world.ask("shutdown")
            return ", ".join(said)

    def severe(self, proxy):
        kind, limit = self.random.choice([one for one in SEVERE if self.options.harm in (None, one[0])])
        at = f"w{self.random.randrange(SIZE)}"
        with self.job(proxy, "--faults", "--no-groups") as world:
            self.begin_traffic(world)
            world.watch(self.random.uniform(0.2, 1.0))
            for worker in world.workers:
                worker.say("endanger " + ("*" if worker.name == at else at))
                worker.answer("endanger", HANGS_S)
            # A worker that is heard on one of two connections is alive: silence has to be on all.
            silent = kind in ("silence", "stall")
            proxy.say(f"harm {at} {kind} {limit} {0 if silent else self.random.choice([1, 1, 2, 0])}")
            world.watch(STALL_S if kind == "stall" else self.random.uniform(0.5, 2))
            if kind == "silence":
                self.await_any_loss(world)
            proxy.say(f"calm {at}")
            lost, left = self.end_traffic(world, f"{kind} at {at}")
            done = [line for line in proxy.done() if line.startswith(kind)]
            self.losses += sum(map(len, lost))
            if left or done and not any(lost):
                # What came twice may look like the begin of a message whose rest does not come any more.
                if kind != "twice" and not (kind == "flip" and self.options.lenient):
                    raise Failure(left or f"{done} cost no link{world.said()}")
                self.unnoticed += 1
            return f"{kind} at {at}, {len(done)} times; lost: " + "; ".join(
                f"{worker.name} {','.join(sorted(one)) or '-'}" for worker, one in zip(world.workers, lost))

    def await_any_loss(self, world):
        """Until a worker has lost another."""
        deadline = time.monotonic() + NOTICED_S
        while not any(world.losses()):
            if time.monotonic() > deadline:
                raise Failure(f"silence did not cost a link within {NOTICED_S:.1f} s{world.said()}")
            world.watch(0.1)

    def joining(self, proxy):
        kind, limit = self.random.choice(JOINING)
        at = self.random.choice([*(f"w{rank}" for rank in range(SIZE)), *["meeting"] * SIZE])
        open_job = self.random.randrange(3) == 0
        # Each that falls silent holds up those that want to join an open job after it.
        count = 1 if open_job and kind == "silence" else self.random.randrange(1, 4)
        proxy.say(f"await {at} {kind} {limit} {count}")
        with self.job(proxy, "--faults", "--no-groups", open_job=open_job) as world:
            world.say("endanger *")
            refused = {worker.name: why for worker in world.workers if (why := worker.joined(JOIN_TIMEOUT_S + HANGS_S))}
            harmed = kind not in SLOW and bool(proxy.done())
            if refused and (not harmed or open_job and "w0" in refused):
                raise Failure(f"{kind} at {at}: {refused}{world.said()}")
            self.refused += bool(refused)
            late = self.come_late(proxy, world, at) if open_job else ""
            if kind in SLOW:
                world.ask("shutdown")
            elif harmed and not refused:
                self.work_together(proxy, world, f"{kind} at {at}, and all joined")
            outcome = f"{len(refused)} refused: {'; '.join(set(refused.values()))}" if refused else "all joined"
            return f"{kind} at {at}{', an open job' if open_job else ''}: {outcome}{late}"

    def work_together(self, proxy, world, what):
        """What was done to a link while all joined all the same has not made a worker that answers wrongly."""
        world.say(f"run {self.random.randrange(1 << 60)} {1 << 60}")
        world.watch(1)
        proxy.say("calm meeting")
        for rank in range(SIZE):
            proxy.say(f"calm w{rank}")
        _, left = self.end_traffic(world, what)
        if left:
            raise Failure(left)

    def come_late(self, proxy, world, at):
        """One that comes to an open job after the harm is taken in, as soon as it is its turn."""
        proxy.say(f"calm {at}")
        newcomer = world.add("--join-timeout", str(2 * ADMISSION_S))
        if why := newcomer.joined(2 * ADMISSION_S + HANGS_S):
            raise Failure(f"{newcomer.name} did not join: {why}{world.said()}")
        self.late += 1
        return "; one came late"

    def result(self, good):
        harms = " ".join(f"{kind}={count}" for kind, count in sorted(self.done.items()))
        print(f"chaos: {'ok' if good else 'FAILED'} runs={self.runs} tls={self.encrypted} calls={self.calls} "
              f"seconds={time.monotonic() - self.begin:.0f} seed={self.options.seed} {harms} losses={self.losses} "
              f"errors={self.errors} refused={self.refused} late={self.late} unnoticed={self.unnoticed} "
              f"slowest_ms={self.slowest_ms}", flush=True)
        return 0 if good else 1


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=80, help="jobs [80]")
    parser.add_argument("--seed", type=int, default=None, help="of all that is drawn [drawn]")
    parser.add_argument("--only", choices=["mild", "severe", "joining"], help="one kind of run")
    parser.add_argument("--harm", choices=sorted({kind for kind, _ in SEVERE}), help="what is done in severe runs")
    parser.add_argument("--tls", choices=["always", "never"], help="whether links are TLS [drawn]")
    parser.add_argument("--no-blobs", action="store_true", help="no buffers beside the payload")
    parser.add_argument("--lenient", action="store_true", help="a flip that goes unnoticed is counted and no failure, "
                                                               "unless a value is wrong")
    parser.add_argument("--build", default="build/dev", help="the build folder [build/dev]")
    options = parser.parse_args()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(1_000_000)
    return options


def main():
    options = parse()
    chaos, failed = Chaos(options), 0
    chaos.tell(f"seed {options.seed}: {options.runs} jobs of {SIZE} workers")
    for index in range(options.runs):
        try:
            chaos.run(index)
        except Failure as failure:
            failed += 1
            chaos.tell(f"FAILED {failure}")
        except Exception:  # the last line is promised
            failed += 1
            chaos.tell(f"FAILED {traceback.format_exc()}")
    return chaos.result(failed == 0 and chaos.runs > 0)


if __name__ == "__main__":
    sys.exit(main())

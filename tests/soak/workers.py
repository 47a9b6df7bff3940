"""Workers of a soak (soak_program) as processes of one job: started, told what to do, listened to, harmed. Standard
library only; one thread per worker reads what it says, everything else is on the caller's thread.
"""
import os
import queue
import re
import secrets
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from free_port import free_port

HANGS_S = 60.0      # far above what anything takes: a limit of so long ends a hang
SLACK_S = 30.0      # how much later than promised something may be on a loaded machine; kLateness (handlers.h) too
# A promise (docs/guide/guarantees.md): a silent peer is lost after 1.4 times `heartbeatTimeout` at most, which is 5 s by default.
NOTICED_S = 1.4 * 5 + SLACK_S
NAMED = re.compile(r"worker '\S+'|'w\d+'|rank \d|\w+://\S+:\d")  # whom or what an error is about
SANITIZED = {"TSAN_OPTIONS": "second_deadlock_stack=1", "UBSAN_OPTIONS": "print_stacktrace=1"}


class Failure(Exception):
    """What a run is ended by."""


def numbers(line):
    """{"calls": 12, ...} of "... calls=12 ..."."""
    return {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)\b", line)}


class Worker:
    def __init__(self, name, command, environment):
        self.name, self.heard, self.at, self.failures = name, time.monotonic(), {}, []
        self.answers, self.errors = queue.Queue(), []
        self.rank = None  # once it has joined
        self.process = subprocess.Popen([*command[:1], name, *command[1:]], env={**SANITIZED, **os.environ, **environment},
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                        errors="replace", bufsize=1, start_new_session=True)
        self.readers = [threading.Thread(target=read, daemon=True) for read in (self._read, self._read_errors)]
        for reader in self.readers:
            reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.heard = time.monotonic()
            line = line.rstrip("\n")
            if line.startswith("failure "):
                self.failures.append(line)
            else:
                if line.startswith(("at ", "ran ")):
                    self.at = {**numbers(line), "name": line.rsplit("=", 1)[1]}
                if not line.startswith("at "):
                    self.answers.put(line)
        self.answers.put(None)

    def _read_errors(self):
        for line in self.process.stderr:
            self.errors.append(line.rstrip("\n"))

    def say(self, line):
        try:
            self.process.stdin.write(line + "\n")
        except (BrokenPipeError, ValueError):
            pass  # it has ended: whoever awaits its answer hears so

    def answer(self, word, limit_s):
        """The line that begins with `word`, within so long."""
        deadline = time.monotonic() + limit_s
        while True:
            try:
                line = self.answers.get(timeout=max(0.01, deadline - time.monotonic()))
            except queue.Empty:
                raise Failure(f"{self.name} did not say '{word}' within {limit_s:.0f} s") from None
            if line is None:
                raise Failure(f"{self.name} ended where it was to say '{word}': {self.end()}")
            if line.split(" ")[0] == word:
                return line

    def joined(self, limit_s):
        """None when it has joined; or why not, in its own words. Failure unless it says one of both in time."""
        try:
            self.rank = numbers(self.answer("joined", limit_s))["rank"]
            return None
        except Failure:
            end = self.end()
            errors = self.errors_said()
            if self.process.returncode != 1 or len(errors) != 1 or not NAMED.search(errors[0]) or self.failures:
                raise Failure(f"{self.name} did not join, and does not say why: {end} {self.failures[:5]}") from None
            return errors[0]

    def errors_said(self):
        """What it ended by: one text, as a rule."""
        return [line.removeprefix("soak_program: ") for line in self.errors if line.startswith("soak_program: ")]

    def ran(self):
        """Whether its run is over; once, as its answer is taken."""
        try:
            return (self.answers.get_nowait() or "").startswith("ran ")
        except queue.Empty:
            return False

    def lost(self):
        """Its answer to `lost`: the names of the workers that it has lost."""
        return set(self.answer("lost", HANGS_S).split(" ")[1].split(",")) - {"-"}

    def end(self, limit_s=HANGS_S):
        """How it ended, in words; it is killed if it does not."""
        try:
            code = self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"it did not end within {limit_s:.0f} s"
        for reader in self.readers:
            reader.join(HANGS_S)
        return f"exit code {code}" + "".join(f"\n  {line}" for line in self.errors[-40:])

    def resident_kb(self):
        try:
            with open(f"/proc/{self.process.pid}/status", encoding="ascii", errors="replace") as status:
                return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1])
        except (OSError, TypeError):
            return 0

    def signal(self, number):
        if self.process.poll() is None:
            self.process.send_signal(number)

    def kill(self):
        self.signal(signal.SIGKILL)
        self.process.wait()

    def check(self):
        """Raises for what a living worker must not do."""
        if self.failures:
            raise Failure(f"{self.name}: " + "\n  ".join(self.failures[:20]))
        if self.process.poll() is not None:
            raise Failure(f"{self.name} ended by itself: {self.end()}")
        if time.monotonic() > self.heard + HANGS_S:
            raise Failure(f"{self.name} has said nothing for {HANGS_S:.0f} s")
        if self.at.get("oldest_ms", 0) > HANGS_S * 1000:
            raise Failure(f"{self.name} hangs in {self.at['name']} since {self.at['oldest_ms'] / 1000:.1f} s")


class World:
    """A job of `size` workers, which all are there from the start; or an open one, which begins with so many."""

    def __init__(self, program, size, options=(), environment=lambda rank: {}, extra=lambda rank: (), open_job=False,
                 port=None):
        """`environment` and `extra` give a worker's variables and options, by its number. `port`: where they meet."""
        self.workers, self.options, self.program = [], options, program
        self.everybody = []  # those too that are gone, or do not belong to it yet
        self.environment, self.extra, self.started = environment, extra, 0
        self.place = {"TREADLE_WORLD_SIZE": "open" if open_job else str(size), "TREADLE_JOB_KEY": secrets.token_hex(16),
                      "TREADLE_MASTER": f"127.0.0.1:{port or free_port()}"}
        for _ in range(size):
            self.add()

    def add(self, *options):
        """One more, with options of its own, which joins if the job is open."""
        number = self.started
        self.started += 1
        rank = "any" if self.place["TREADLE_WORLD_SIZE"] == "open" and number > 0 else str(number)
        self.workers.append(Worker(f"w{number}", [self.program, *self.options, *self.extra(number), *options],
                                   {**self.place, "TREADLE_RANK": rank, **self.environment(number)}))
        self.everybody.append(self.workers[-1])
        return self.workers[-1]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for worker in self.everybody:
            worker.kill()

    def await_start(self):
        """All have joined; then they stand in the order of their ranks, which an open job gives out as they come."""
        for worker in self.workers:
            if why := worker.joined(HANGS_S):
                raise Failure(f"{worker.name} did not join: {why}{self.said()}")
        self.workers.sort(key=lambda worker: worker.rank)

    def say(self, line):
        for worker in self.workers:
            worker.say(line)

    def ask(self, line, limit_s=HANGS_S, workers=None):
        """Tells all, or those, and returns their answers."""
        asked = self.workers if workers is None else workers
        for worker in asked:
            worker.say(line)
        return [worker.answer(line.split(" ")[0], limit_s) for worker in asked]

    def shut_down(self):
        """All end the job together, with exit code 0."""
        self.ask("shutdown")
        for worker in self.workers:
            end = worker.end()
            if worker.process.returncode != 0:
                raise Failure(f"{worker.name}'s end: {end}")

    def losses(self):
        """For each worker the names of those that it has lost."""
        self.say("lost")
        return [worker.lost() for worker in self.workers]

    def await_loss(self, name, limit_s=NOTICED_S):
        """Until all have lost that worker."""
        deadline = time.monotonic() + limit_s
        while late := [worker.name for worker, lost in zip(self.workers, self.losses()) if name not in lost]:
            if time.monotonic() > deadline:
                raise Failure(f"{late} did not lose {name} within {limit_s:.1f} s{self.said()}")
            self.watch(0.1)

    def check(self):
        """Raises what is wrong with any of them: where one dies, others say so before its end is seen."""
        found = []
        for worker in self.workers:
            try:
                worker.check()
            except Failure as failure:
                found.append(str(failure))
        if found:
            raise Failure("\n".join(found) + self.said())

    def watch(self, seconds):
        """`check`, again and again for so long."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self.check()
            time.sleep(0.02)

    def said(self):
        """How all end when they are told to leave, and what they said on standard error: the reason of a failure."""
        self.say("leave")
        deadline = time.monotonic() + HANGS_S
        return "".join(f"\n{worker.name}: {worker.end(max(0.0, deadline - time.monotonic()))}" for worker in self.workers)

    def total(self, key):
        return sum(worker.at.get(key, 0) for worker in self.workers)

    def resident_mb(self):
        return sum(worker.resident_kb() for worker in self.workers) / 1024

"""Part three of a soak: an open job whose workers come and go. Every few seconds one is killed, stopped until it is
given up, or leaves, its keeper too, and another joins. In the end all shut it down; or its keeper dies, after which
nobody comes in any more, calls go on, and the end of the job fails by the keeper's name. Standard library only; one
thread.
"""
import signal
import socket
import time

from workers import HANGS_S, NOTICED_S, Failure

EVERY_S = (1.0, 3.0)
REFUSED_S = 3    # how long one tries to join a job that has no keeper
HELD_UP_S = 2.0  # less than the others wait for a sign of life
HANDED_OVER_S = 0.003
# How one goes, and whether it is the keeper: a job whose keeper dies lets nobody in any more.
GOINGS = [("killed", False), ("killed", False), ("stopped", False), ("leaves", False), ("leaves", True)]
DEATHS = ["killed", "killed", "stopped", "dies_leaving"]  # of the keeper


class Comings:
    def __init__(self, soak, world):
        """`soak` draws, tells and counts; `world` is an open job."""
        self.soak, self.world, self.random = soak, world, soak.random
        self.gone, self.joined_at = [], {}  # names in their order; how many were gone when each came
        self.woken = []
        # Of a keeper that died: its name; who may have taken over just then; and whether the job goes on without it.
        self.dead, self.heir, self.goes_on = None, None, True

    def run(self, end, keeper_dies):
        world = self.world
        world.await_start()
        for worker in world.workers:
            self.joined_at[worker.name] = 0
        world.say(f"run {self.soak.seed()} {1 << 60}")
        while time.monotonic() < end:
            self.go_and_come()
        if keeper_dies:
            self.lose_keeper()
        self.check()
        world.say("shutdown")
        for worker in world.workers:
            self.check_shutdown(worker)

    # ---- one goes and another comes

    def keeper(self):
        """Who lets workers in: the first, and when it has left the one with the lowest rank."""
        return self.world.workers[0]

    def go_and_come(self):
        self.world.watch(self.random.uniform(*EVERY_S))
        how, is_keeper = self.random.choice(GOINGS)
        victim = self.keeper() if is_keeper else self.random.choice(self.world.workers[1:])
        self.soak.keepers += is_keeper
        self.take(victim, how)
        newcomer = self.begin_joining() if is_keeper else None  # while one takes over
        getattr(self, how)(victim)
        self.come(newcomer or self.begin_joining())

    def take(self, victim, how):
        self.endanger(victim)
        self.soak.tell(f"{victim.name}{', the keeper,' if victim is self.keeper() else ''} "
                       f"{'is ' if how in ('killed', 'stopped') else ''}{how.replace('_', ' ')}")
        self.world.workers.remove(victim)
        self.gone.append(victim.name)

    def endanger(self, victim):
        self.world.ask(f"endanger {victim.name}")
        victim.say("endanger *")
        victim.answer("endanger", HANGS_S)

    def killed(self, victim):
        self.soak.kills += 1
        victim.kill()

    def stopped(self, victim):
        self.soak.stops += 1
        victim.signal(signal.SIGSTOP)
        self.world.await_loss(victim.name)
        self.wake(victim)

    def wake(self, victim):
        victim.heard = time.monotonic()
        victim.signal(signal.SIGCONT)
        self.woken.append((victim, {other.name for other in self.world.workers}))

    def leaves(self, victim):
        self.soak.leaves += 1
        self.depart(victim, lambda: self.world.watch(0.2))
        victim.answer("depart", HANGS_S)
        self.check_end(victim)

    def depart(self, victim, watch):
        """It waits until nobody calls it and nobody holds its values: so the others avoid it, and clear the shelves."""
        self.world.ask(f"avoid {victim.name}")
        victim.say(f"depart {HANGS_S:.0f}")
        deadline = time.monotonic() + HANGS_S
        while victim.process.poll() is None and time.monotonic() < deadline:
            self.world.ask("clear")
            watch()

    def begin_joining(self, *options):
        newcomer = self.world.add(*options)
        self.world.workers.remove(newcomer)  # not to be told to do anything yet
        return newcomer

    def come(self, newcomer):
        why = newcomer.joined(HANGS_S)
        if why and why.endswith("leaves; try again"):  # the keeper, when it was the turn of this one
            newcomer = self.begin_joining()
            why = newcomer.joined(HANGS_S)
        if why:
            raise Failure(f"{newcomer.name} did not join: {why}{self.world.said()}")
        self.take_in(newcomer)

    def take_in(self, newcomer):
        self.joined_at[newcomer.name] = len(self.gone)
        for name in self.gone:
            newcomer.say(f"endanger {name}")
            newcomer.answer("endanger", HANGS_S)
        newcomer.say(f"run {self.soak.seed()} {1 << 60}")
        self.world.workers.append(newcomer)
        self.soak.joins += 1
        self.soak.tell(f"{newcomer.name} has come, {len(self.world.workers)} are there")

    # ---- the keeper dies

    def lose_keeper(self):
        """Another is killed after it, and one comes too late, unless the keeper had handed over before it died."""
        self.world.watch(self.random.uniform(*EVERY_S))
        victim, how = self.keeper(), self.random.choice(DEATHS)
        self.soak.keepers += 1
        self.dead, self.goes_on = victim.name, False
        self.take(victim, how)
        {"killed": self.killed, "stopped": self.stops, "dies_leaving": self.dies_leaving}[how](victim)
        late = self.begin_joining("--join-timeout", str(REFUSED_S))
        other = self.random.choice(self.world.workers[1:])
        self.take(other, "killed")
        self.killed(other)
        if how == "stopped":
            self.world.await_loss(victim.name)
        self.come_late(late, how)
        if how == "stopped":
            self.wake(victim)

    def stops(self, victim):
        self.soak.stops += 1
        victim.signal(signal.SIGSTOP)

    def dies_leaving(self, victim):
        """About when its heir takes over, which is held up for that: some of the others may have heard of it."""
        self.heir = self.keeper()
        self.endanger(self.heir)
        self.world.ask(f"avoid {victim.name}")
        victim.say(f"avoid {self.heir.name}")
        self.world.ask("clear")
        self.heir.signal(signal.SIGSTOP)
        victim.say(f"depart {HANGS_S:.0f}")
        self.await_closed()
        kill, wake = lambda: self.killed(victim), lambda: self.heir.signal(signal.SIGCONT)
        for step in self.random.choice([(kill, wake), (wake, kill), (wake, kill)]):
            step()
            time.sleep(self.random.uniform(0, HANDED_OVER_S))
        self.heir.heard = time.monotonic()

    def await_closed(self):
        """Until nobody is let in any more, as the keeper begins to hand over; not if it waits for the heir itself."""
        others = [worker for worker in self.world.workers if worker is not self.heir]
        deadline = time.monotonic() + HELD_UP_S
        while self.anybody_listens() and time.monotonic() < deadline:
            self.world.ask("clear", workers=others)

    def anybody_listens(self):
        host, port = self.world.place["TREADLE_MASTER"].split(":")
        with socket.socket() as guest:
            return guest.connect_ex((host, int(port))) == 0

    def come_late(self, late, how):
        why = late.joined(HANGS_S)
        self.soak.tell(f"{late.name} comes: {why or 'the keeper had handed over'}")
        self.goes_on = why is None
        if self.goes_on and how != "dies_leaving":
            raise Failure(f"{late.name} has joined a job whose keeper was {how}")
        if self.goes_on:
            self.take_in(late)

    # ---- what is left

    def check(self):
        for worker, met in self.woken:
            self.soak.check_woken(worker, met & {other.name for other in self.world.workers})
        self.world.say("stop")
        deadline = time.monotonic() + NOTICED_S
        while wrong := self.wrong_losses():
            if time.monotonic() > deadline:
                raise Failure(f"gone are {self.gone}; {wrong}{self.world.said()}")
            self.world.watch(0.1)
        self.soak.check_settled(self.soak.settle(self.world))
        self.soak.memory.pop()
        self.world.check()
        self.soak.tell(f"{len(self.gone)} gone, {len(self.world.workers)} are left, exact, and nothing else is")

    def wrong_losses(self):
        """Which worker has not lost those, and only those, that are gone; in words."""
        doubtful = {self.heir.name} if self.heir else set()
        for worker, lost in zip(self.world.workers, self.world.losses()):
            # One that went while it came it may have met, or not. One that was to be the keeper lets go of those that
            # took it for it.
            certain, joined_at = set(self.gone[self.joined_at[worker.name]:]), self.joined_at[worker.name]
            if not certain <= lost or (worker is not self.heir and not lost <= {*self.gone, *doubtful}):
                return f"{worker.name}, which came after {joined_at} of them, has lost {sorted(lost)}"
        return ""

    def check_shutdown(self, worker):
        """Without a keeper it ends by an error with its name."""
        end, names = worker.end(), [self.dead, *([self.heir.name] if self.heir else [])]
        errors = worker.errors_said()
        by_name = worker.process.returncode == 1 and any(f"'{name}'" in error for name in names for error in errors)
        well = worker.process.returncode == 0
        if worker.failures or not (well if self.goes_on else by_name or (well and self.heir)):
            raise Failure(f"{worker.name}'s end: {end} {worker.failures[:5]}")

    @staticmethod
    def check_end(worker):
        end = worker.end()
        if worker.process.returncode != 0 or worker.failures:
            raise Failure(f"{worker.name}'s end: {end} {worker.failures[:5]}")

#!/usr/bin/env python3
"""Kills (SIGKILL) a worker, or a server, of a job with summation servers at each of 20 named moments, and stops (SIGSTOP) them
at some (root only).

Three workers and two servers, each in a network namespace with 200 Mbit/s, sum three tensors in four rounds and check the sums
(kill_service_program.cc) to the bit, in data whose sums depend on the order of addition. The victim kills itself at the moment, so that it strikes exactly there:

    joined, making, made, second-round, left   a step of the victim's program
    KIND.INDEX.PLACE                           a frame that the victim sends: `before` the INDEX-th of its kind (announce, grant,
                                               addend, sum, have, release, version, leave), when `half` of its bytes are sent, or `after` it

A killed worker ends the job: all others end by themselves within 10 s, each with an error that names it. A killed server costs a
pause: the workers end well with the right sums, and so does the other server, within 10 s too (all rounds take about 2 s). So
it is with stopped ones, which are silent, within 15 s: they are lost to the job after 3 s without a heartbeat, and to the service 2 s later.
And so it is in an asynchronous service, where workers give as many changes of running sums, and see that these have all changes,
and where the data travels as one bit. The first worker decides where the parts of a lost server go.
With MOMENT+MOMENT the second server is killed too, which has the parts of the first one by then: the workers go on alone.

usage: kill_service.py [--build FOLDER] [--only ROLE:MOMENT] [--verbose]. Ends with
`kill-service: ok|FAILED kills=... failed=... slowest_ROLE=...`, the seconds after which the others had ended at the latest.
"""
import argparse
import os
import pathlib
import secrets
import signal
import subprocess
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "bench"))
from bed import PORT, Bed
from processes import Failed, end_orderly

WORKERS, SERVERS, RATE = 3, 2, "200mbit"
END_S, SILENT_END_S = 10, 15  # within which the others end
LIMIT_S = 60  # until the moment has come
POLL_S = 0.005

# Of the second worker, or the first one, and of the first server. A worker sends some 150 addends and as many sums.
MOMENTS = {
    "worker": ["joined", "making", "made", "second-round", "left",
               "announce.0.before", "announce.0.after", "announce.7.half",
               "grant.0.before", "grant.0.half", "grant.3.after",
               "addend.0.before", "addend.0.half", "addend.1.after", "addend.100.half",
               "sum.0.before", "sum.0.half", "sum.40.after",
               "have.0.after", "leave.0.half"],
    "server": ["joined", "grant.0.before", "grant.0.half", "grant.0.after", "grant.4.before", "grant.7.after",
               "sum.0.before", "sum.0.half", "sum.0.after", "sum.1.half", "sum.2.after", "sum.31.half", "sum.100.half", "sum.150.after",
               "release.0.before", "release.0.half", "release.0.after", "release.1.after", "release.5.before", "release.9.half"],
    "first-worker": ["making", "made", "grant.0.half", "addend.100.half", "sum.40.after"],
    "silent-worker": ["made", "addend.100.half", "sum.40.after"],
    "silent-server": ["grant.0.after", "sum.31.half", "release.1.after"],
    "asynchronous-server": ["grant.0.half", "version.0.before", "version.0.after", "version.4.half", "version.7.after",
                            "sum.0.before", "sum.31.half", "sum.100.half", "sum.150.after"],
    "one-bit-server": ["grant.0.after", "sum.0.half", "sum.3.after", "release.0.half", "release.2.after"],
    "both-servers": ["grant.0.before+grant.4.after", "grant.0.after+release.0.half", "sum.0.half+release.0.before",
                     "sum.1.half+sum.31.half", "release.0.after+sum.100.half"],
    "asynchronous-both-servers": ["grant.0.half+version.0.before", "version.0.after+sum.31.half", "sum.31.half+version.7.after"],
}


class Run:
    """One job whose victims, the worker or servers of the role, are killed at their moments."""

    def __init__(self, build, bed, role, moment):
        self.program = build / "tests" / "kill_service_program"
        self.bed = bed
        self.is_worker, self.stops = role.endswith("worker"), role.startswith("silent")
        self.mode = [mode for mode in ("asynchronous", "one-bit") if role.startswith(mode)]
        first = 0 if role == "first-worker" else 1 if self.is_worker else WORKERS
        self.victims = {first + number: one for number, one in enumerate(moment.split("+"))}
        self.others = [rank for rank in range(WORKERS + SERVERS) if rank not in self.victims]
        self.processes = []

    def start(self):
        shared = {"TREADLE_WORLD_SIZE": WORKERS + SERVERS, "TREADLE_SERVERS": SERVERS,
                  "TREADLE_MASTER": f"{self.bed.address(0)}:{PORT}", "TREADLE_JOB_KEY": secrets.token_hex(16),
                  "TREADLE_CHANNELS": "tcp"}
        for rank in range(WORKERS + SERVERS):
            moment = [self.victims[rank], *(["stop"] if self.stops else [])] if rank in self.victims else []
            self.processes.append(self.bed.start(rank, self.program, *self.mode, *moment, environment={**shared, "TREADLE_RANK": rank}))

    def is_struck(self, victim):
        process = self.processes[victim]
        if process.poll() is not None:
            return True
        return self.stops and pathlib.Path(f"/proc/{process.pid}/stat").read_text(encoding="utf-8").split(")")[-1].split()[0] == "T"

    @staticmethod
    def wait(is_true, limit):
        """Seconds until it is; None: it is not."""
        begin = time.monotonic()
        while not is_true():
            if time.monotonic() - begin > limit:
                return None
            time.sleep(POLL_S)
        return time.monotonic() - begin

    def result(self):
        """Seconds from the kill until the others had ended, and what is wrong, a sentence each."""
        try:
            self.start()
            if self.wait(lambda: all(self.is_struck(victim) for victim in self.victims), LIMIT_S) is None:
                return 0, ["the moment did not come"]
            seconds = self.wait(lambda: all(self.processes[rank].poll() is not None for rank in self.others),
                                SILENT_END_S if self.stops else END_S)
            if seconds is None:
                hangs = [rank for rank in self.others if self.processes[rank].poll() is None]
                return 0, [f"ranks {hangs} did not end in time"]
            return seconds, self.problems()
        finally:
            for process in self.processes:
                process.kill()

    def problems(self):
        found = []
        if self.stops:
            for victim in self.victims:
                self.processes[victim].kill()
        texts = [process.communicate("", timeout=LIMIT_S) for process in self.processes]
        codes = [process.returncode for process in self.processes]
        for victim in self.victims:
            if codes[victim] != -signal.SIGKILL:
                found.append(f"the victim, rank {victim}, ended with {codes[victim]}: {texts[victim][1].strip()}")
        for rank in self.others:
            code, (out, errors) = codes[rank], texts[rank]
            last = errors.strip().splitlines()[-1] if errors.strip() else ""
            if self.is_worker and not (code == 1 and all(f"worker{victim}" in last for victim in self.victims)):
                found.append(f"rank {rank} ended with {code} and '{last}'")
            if not self.is_worker and (code != 0 or (rank < WORKERS and "all sums are right" not in out)):
                found.append(f"rank {rank} ended with {code} and '{last}'")
        return found


def cases_of(options):
    for role, moments in MOMENTS.items():
        for moment in moments:
            if not options.only or options.only == f"{role}:{moment}":
                yield role, moment


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build/dev"), help="the build folder [build/dev]")
    parser.add_argument("--only", metavar="ROLE:MOMENT", help="one of them")
    parser.add_argument("--verbose", action="store_true", help="a line for each kill")
    options = parser.parse_args()
    end_orderly()
    kills, failed, slowest = 0, 0, {role: 0.0 for role in MOMENTS}
    try:
        with Bed(WORKERS + SERVERS, RATE) as bed:
            for role, moment in cases_of(options):
                seconds, problems = Run(options.build.resolve(), bed, role, moment).result()
                kills += 1
                failed += bool(problems)
                slowest[role] = max(slowest[role], seconds)
                if problems:
                    print(f"{role} at {moment}: {'; '.join(problems)}", flush=True)
                elif options.verbose:
                    print(f"{role} at {moment}: the others ended after {seconds:.2f} s", flush=True)
    except (Failed, OSError, subprocess.SubprocessError) as failure:
        print(failure)
        failed += 1
    if kills == 0:
        failed += 1
    seconds = " ".join(f"slowest_{role.replace('-', '_')}={one:.2f}" for role, one in slowest.items())
    print(f"kill-service: {'FAILED' if failed else 'ok'} kills={kills} failed={failed} {seconds}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

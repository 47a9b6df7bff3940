"""The bed that measures the summation service: machines in network namespaces, joined by a bridge, each with so many bits per
second out of it and into it (root only).

    python bench/netbed.py [--workers 4 --servers 2] [--bytes 32000000,64000000] [--rate 200mbit] [--rounds 5] [--per-host 2]
    python bench/netbed.py --workers 4 --servers 2 --parts 1,1,1,0.75,0.5,0.5

B is the goodput of one long TCP stream each way at the same time, the best that was seen at this rate in any bed of the run: whatever
else the machine does makes it less. Seconds are the median of the rounds after the first. The MTU is 1500 bytes. Of the time of all
cores in these rounds, a part was idle: where that is little, the ratio is that of the machine; and the host of a virtual machine took
another part: where that is more than 3%, the rounds are measured again, up to four times in all, and the attempt counts of which it
took least. Rows: a service, over the least time that the network allows (treadle/core/summation/shares.h), with the gain over our own
ring all-reduce in the same bed; services with the tensors of models; all sums on the servers, as plain parameter servers do;
machines of which some have only a part of the rate, with shares by their bandwidths; services of whole jobs with `treadle server`
and TLS, of one worker on each host and of two, over the least time of one worker per host, beside the all-reduce that a process
group of the same workers chooses.
Without --workers all pairs and models are measured, in about half an hour, and longer where rounds are measured again. Writes
build/bench/netbed.json and netbed.png, in another folder with --out, and ends with `netbed: ok|FAILED rows=... over=... worst=...`, or with
`netbed: FAILED reason="..."`.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys

import namespaces
from bed import MTU, ROOT, Service, best_gain, least_time
from processes import Failed, end_orderly, require

PAIRS = [(2, 1), (3, 0), (3, 1), (4, 1), (4, 2), (4, 4), (6, 3)] + [(8, servers) for servers in range(9)]
MODELS = ["resnet50", "vgg16", "bert-large", "gpt2", "transformer"]
MODEL_PAIRS, MODEL_BYTES = [(4, 2), (8, 4)], 64_000_000
ON_SERVERS_PAIRS = [(4, 1), (4, 2), (4, 4), (8, 4)]
PARTS_PAIR, PARTS = (4, 2), [1, 1, 1, 0.75, 0.5, 0.5]
JOB_PAIRS, JOB_BYTES = [(3, 1), (4, 2)], 64_000_000
MANY = 8  # workers: two cores are not enough for them at the first rate, as the idle time of their rows shows
RATE, RATE_OF_MANY = "200mbit", "100mbit"
BAR, MODEL_BAR, PARTS_BAR, SHARED_HOSTS_BAR = 1.05, 1.07, 1.07, 1.15
GAIN_WITHIN = 0.05


def on_servers_time(workers, servers, size, bandwidth):
    return max(size / bandwidth, workers * size / (servers * bandwidth))


def least_time_by_parts(workers, size, parts, bandwidth):
    """t* of treadle/core/summation/shares.h, of machines with such parts of the bandwidth."""
    of_workers, of_servers = parts[:workers], parts[workers:]
    shared = 2 * workers * (workers - 1) * size / (workers * sum(of_workers) + (workers - 2) * sum(of_servers))
    return max(size / min(of_workers), shared) / bandwidth


def judge(row, bandwidth):
    """By the least time at a bandwidth."""
    row["bandwidth"], row["least"] = bandwidth, row["least_bytes"] / bandwidth
    row["ratio"] = row["median"] / row["least"]
    return row


class Measurements:
    """Of one number of workers and servers. `best`: the bandwidths that were seen so far, by rate."""

    def __init__(self, service, best):
        self.rate, self.service = service.bed.rate, service
        self.workers, self.servers = service.workers, service.servers
        self.bandwidth = best[self.rate] = max(service.bed.goodput(), best.get(self.rate, 0))

    def row(self, kind, size, least_bytes, bar, rounds):
        row = {"kind": kind, "workers": self.workers, "servers": self.servers, "bytes": size, "rate": self.rate, "mtu": MTU,
               "seconds": rounds.seconds, "median": statistics.median(rounds.seconds), "least_bytes": least_bytes, "bar": bar,
               "idle": rounds.idle, "stolen": rounds.stolen, "attempts": rounds.attempts}
        return judge(row, self.bandwidth)

    def of_service(self, size, beside_ring):
        row = self.row("service", size, self.least(size), BAR, self.service.sums(size))
        if beside_ring:
            row["ring_seconds"] = self.service.rings(size).seconds
            row["gain"] = statistics.median(row["ring_seconds"]) / row["median"]
            row["best_gain"] = best_gain(self.workers, self.servers)
        return row

    def by_parts(self, size):
        least = least_time_by_parts(self.workers, size, self.service.bed.parts, 1)
        return self.row("by bandwidths", size, least, PARTS_BAR, self.service.sums(size))

    def of_model(self, name, size):
        return self.row(name, size, self.least(size), MODEL_BAR, self.service.sums(size, "--model", name))

    def of_job(self, size, per_host):
        bar = BAR if per_host == 1 else SHARED_HOSTS_BAR
        row = self.row(f"job, {per_host} per host", size, self.least(size), bar, self.service.sums_of_job(size, per_host))
        row["group_seconds"] = self.service.group_of_job(size, per_host).seconds
        return row

    def on_servers(self, size):
        least = on_servers_time(self.workers, self.servers, size, 1)
        return self.row("on servers", size, least, BAR, self.service.sums(size, "--on-servers"))

    def least(self, size):
        """In bytes on the busiest link."""
        return least_time(self.workers, self.servers, size, 1)


def rows_of_service(options, here):
    pair = (here.workers, here.servers)
    for size in options.bytes:
        yield here.of_service(size, beside_ring=size == options.bytes[0])
    if not options.workers and pair in MODEL_PAIRS:
        for name in MODELS:
            yield here.of_model(name, MODEL_BYTES)
    if here.servers > 0 and (options.workers or pair in ON_SERVERS_PAIRS):
        yield here.on_servers(options.bytes[0])


def rate_of(workers):
    return RATE_OF_MANY if workers >= MANY else RATE


def rows_of(options):
    """Yields each row when it is there."""
    pairs = [(options.workers, options.servers)] if options.workers else None
    best = {}
    if not options.per_host and not options.parts:
        for pair in pairs or PAIRS:
            with Service(options.build, *pair, options.rate or rate_of(pair[0]), options.rounds) as service:
                yield from rows_of_service(options, Measurements(service, best))
    if options.parts or not (pairs or options.per_host):
        with Service(options.build, *(pairs or [PARTS_PAIR])[0], options.rate or RATE_OF_MANY, options.rounds,
                     options.parts or PARTS) as service:
            for size in options.bytes:
                yield Measurements(service, best).by_parts(size)
    if options.per_host or not pairs:
        for pair in pairs or JOB_PAIRS:
            for per_host in [options.per_host] if options.per_host else [1, 2]:
                with Service(options.build, *pair, options.rate or RATE_OF_MANY, options.rounds) as service:
                    yield Measurements(service, best).of_job(JOB_BYTES, per_host)


def text_of(row):
    spread = (max(row["seconds"]) - min(row["seconds"])) / row["median"]
    text = (f"({row['workers']},{row['servers']}) {row['kind']:<15} {row['bytes'] / 1e6:.0f} MB  {row['median']:.3f} s  "
            f"{row['ratio']:.3f} of the least time  spread {100 * spread:.1f}%  B {row['bandwidth'] / 1e6:.2f} MB/s  "
            f"cores idle {100 * row['idle']:.0f}%, stolen {100 * row['stolen']:.0f}%")
    if row["attempts"] > 1:
        text += f" of {row['attempts']} attempts"
    if "group_seconds" in row:
        return text + f"  {statistics.median(row['group_seconds']) / row['median']:.3f} times a process group's all-reduce"
    if "gain" not in row:
        return text
    text += f"  {row['gain']:.3f} times our ring, {row['best_gain']:.3f} at best"
    return text + (": two workers gain nothing" if row["workers"] == 2 else "")


def is_over(row):
    gain_is_off = "gain" in row and abs(row["gain"] / row["best_gain"] - 1) > GAIN_WITHIN
    return gain_is_off or not 1 <= row["ratio"] <= row["bar"]


def line_of(row):
    return text_of(row) + ("  OVER" if is_over(row) else "")


def sizes(text):
    return [int(one) for one in text.split(",")]


def numbers(text):
    return [float(one) for one in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--servers", type=int, default=0)
    parser.add_argument("--bytes", type=sizes, default=[32_000_000, 64_000_000], help="with commas between them")
    parser.add_argument("--rate", help=f"{RATE} if it is not given, and {RATE_OF_MANY} for {MANY} workers or more, of jobs"
                        " and with --parts")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--per-host", type=int, help="only the rows of whole jobs with so many workers on each host")
    parser.add_argument("--parts", type=numbers, help="of the rate, with commas between them: of each worker, the first two 1, then of each server;"
                        " only this row")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "bench", help="the folder for netbed.json and netbed.png")
    options = parser.parse_args()
    if options.workers is not None and not (options.workers >= 2 and options.servers >= 0):
        parser.error("a sum is among at least 2 workers, with 0 servers or more")
    if options.per_host is not None and options.per_host < 1:
        parser.error("--per-host is at least 1")
    if options.parts and (options.per_host or options.workers is None or len(options.parts) != options.workers + options.servers
                          or options.parts[:2] != [1, 1] or min(options.parts) <= 0):
        parser.error("--parts has a number above 0 for each worker and server, the first two 1, and is without --per-host")
    namespaces.require()
    require([options.build / name for name in ("bench/treadle_netbed_node", "bench/treadle_netbed_job", "bin/treadle")], "netbed")
    end_orderly()
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in rows_of(options):
        rows.append(row)
        print(line_of(row), flush=True)
        (options.out / "netbed.json").write_text(json.dumps(rows, indent=2) + "\n")
    for row in rows:
        before = line_of(row)
        judge(row, max(other["bandwidth"] for other in rows if other["rate"] == row["rate"]))
        if line_of(row) != before:
            print("by the best bandwidth of the run:", line_of(row))
    (options.out / "netbed.json").write_text(json.dumps(rows, indent=2) + "\n")
    from netbed_picture import draw  # which takes a second, and matplotlib
    draw(rows, options.out / "netbed.png")
    over = [row for row in rows if is_over(row)]
    worst = max(rows, key=lambda row: row["ratio"] / row["bar"])
    verdict = "FAILED" if over else "ok"
    print(f"netbed: {verdict} rows={len(rows)} over={len(over)} worst={worst['ratio']:.3f}"
          f" of=({worst['workers']},{worst['servers']})")
    return 1 if over else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (Failed, OSError, ImportError, subprocess.SubprocessError) as failure:
        print(f"netbed: FAILED reason={json.dumps(str(failure))}")
        sys.exit(1)

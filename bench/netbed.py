"""The bed that measures the summation service: machines in network namespaces, joined by a bridge, each with so many bits per
second out of it and into it (root only).

    python bench/netbed.py [--workers 4 --servers 2] [--bytes 32000000,64000000] [--rate 200mbit] [--rounds 5] [--per-host]

B is the goodput of one long TCP stream each way at the same time in the same bed. Seconds are the median of the rounds after the
first. Rows: a service, over the least time that the network allows (treadle/core/summation/shares.h), with the gain over our own
ring all-reduce in the same bed; services with the tensors of models; all sums on the servers, as plain parameter servers do;
services of whole jobs with two workers on each host and TLS, over the least time of one worker per host, beside the all-reduce
that a process group of the same workers chooses.
Without --workers all pairs and models are measured, in about half an hour. Writes build/bench/netbed.json and netbed.png, and ends
with `netbed: ok|FAILED rows=... over=... worst=...`.
"""

import argparse
import json
import pathlib
import statistics
import sys

from bed import ROOT, Service, best_gain, least_time
from netbed_picture import draw
from processes import Failed, end_orderly, require

PAIRS = [(3, 0), (3, 1), (4, 1), (4, 2), (4, 4), (6, 3)] + [(8, servers) for servers in range(9)]
MODELS = ["resnet50", "vgg16", "bert-large", "gpt2", "transformer"]
MODEL_PAIRS, MODEL_BYTES = [(4, 2), (8, 4)], 64_000_000
ON_SERVERS_PAIRS = [(4, 1), (4, 2), (4, 4), (8, 4)]
PER_HOST, HOSTS_PAIRS, HOSTS_BYTES = 2, [(3, 1), (4, 2)], 64_000_000
MANY = 8  # workers: two cores are not enough for them at the first rate, as the idle time of their rows shows
RATE, RATE_OF_MANY = "200mbit", "100mbit"
BAR, MODEL_BAR, HOSTS_BAR = 1.05, 1.07, 1.15
GAIN_WITHIN = 0.05


class Idle:
    """Which part of the time of all cores was idle meanwhile: where there is little, the ratio is that of the machine."""

    @staticmethod
    def times():
        numbers = [int(word) for word in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
        return numbers[3] + numbers[4], sum(numbers)

    def __enter__(self):
        self.begin = self.times()
        return self

    def __exit__(self, *_):
        idle, all_of_them = (end - begin for end, begin in zip(self.times(), self.begin))
        self.part = idle / max(all_of_them, 1)


def on_servers_time(workers, servers, size, bandwidth):
    return max(size / bandwidth, workers * size / (servers * bandwidth))


class Measurements:
    """Of one number of workers and servers."""

    def __init__(self, service):
        self.rate, self.service = service.bed.rate, service
        self.workers, self.servers = service.workers, service.servers
        self.bandwidth = service.bed.goodput()

    def row(self, kind, size, least, bar, *more, measure=None):
        with Idle() as idle:
            seconds = measure() if measure else self.service.seconds(size, *more)
        median = statistics.median(seconds)
        return {"kind": kind, "workers": self.workers, "servers": self.servers, "bytes": size, "rate": self.rate,
                "bandwidth": self.bandwidth, "seconds": seconds, "median": median, "least": least, "ratio": median / least,
                "bar": bar, "idle": idle.part}

    def of_service(self, size, beside_ring):
        row = self.row("service", size, least_time(self.workers, self.servers, size, self.bandwidth), BAR)
        if beside_ring:
            row["ring_seconds"] = self.service.ring_seconds(size)
            row["gain"] = statistics.median(row["ring_seconds"]) / row["median"]
            row["best_gain"] = best_gain(self.workers, self.servers)
        return row

    def of_model(self, name, size):
        least = least_time(self.workers, self.servers, size, self.bandwidth)
        return self.row(name, size, least, MODEL_BAR, "--model", name)

    def of_hosts(self, size):
        least = least_time(self.workers, self.servers, size, self.bandwidth)
        row = self.row(f"{PER_HOST} per host", size, least, HOSTS_BAR, measure=lambda: self.service.seconds_of_hosts(size, PER_HOST))
        row["group_seconds"] = self.service.group_seconds_of_hosts(size, PER_HOST)
        return row

    def on_servers(self, size):
        least = on_servers_time(self.workers, self.servers, size, self.bandwidth)
        return self.row("on servers", size, least, BAR, "--on-servers")


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
    if not options.per_host:
        for pair in pairs or PAIRS:
            with Service(options.build, *pair, options.rate or rate_of(pair[0]), options.rounds) as service:
                yield from rows_of_service(options, Measurements(service))
    if options.per_host or not pairs:
        for pair in pairs or HOSTS_PAIRS:
            with Service(options.build, *pair, options.rate or RATE_OF_MANY, options.rounds) as service:
                yield Measurements(service).of_hosts(HOSTS_BYTES)


def text_of(row):
    spread = (max(row["seconds"]) - min(row["seconds"])) / row["median"]
    text = (f"({row['workers']},{row['servers']}) {row['kind']:<11} {row['bytes'] / 1e6:.0f} MB  {row['median']:.3f} s  "
            f"{row['ratio']:.3f} of the least time  spread {100 * spread:.1f}%  B {row['bandwidth'] / 1e6:.2f} MB/s  "
            f"idle {100 * row['idle']:.0f}%")
    if "group_seconds" in row:
        return text + f"  {statistics.median(row['group_seconds']) / row['median']:.3f} times a process group's all-reduce"
    if "gain" not in row:
        return text
    text += f"  {row['gain']:.3f} times our ring, {row['best_gain']:.3f} at best"
    return text + (": two workers gain nothing" if row["workers"] == 2 else "")


def is_over(row):
    gain_is_off = "gain" in row and abs(row["gain"] / row["best_gain"] - 1) > GAIN_WITHIN
    return gain_is_off or not 1 <= row["ratio"] <= row["bar"]


def sizes(text):
    return [int(one) for one in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--servers", type=int, default=0)
    parser.add_argument("--bytes", type=sizes, default=[32_000_000, 64_000_000], help="with commas between them")
    parser.add_argument("--rate", help=f"{RATE} if it is not given, and {RATE_OF_MANY} for {MANY} workers or more and for several on each host")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--per-host", action="store_true", help=f"only the rows with {PER_HOST} workers on each host")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    options = parser.parse_args()
    if options.workers is not None and not (options.workers >= 2 and options.servers >= 0):
        parser.error("a sum is among at least 2 workers, with 0 servers or more")
    require([options.build / name for name in ("bench/treadle_netbed_node", "bench/treadle_netbed_job", "bin/treadle")], "netbed")
    end_orderly()
    out = ROOT / "build" / "bench"
    out.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in rows_of(options):
        rows.append(row)
        print(text_of(row) + ("  OVER" if is_over(row) else ""), flush=True)
        (out / "netbed.json").write_text(json.dumps(rows, indent=2) + "\n")
    draw(rows, out / "netbed.png")
    over = [row for row in rows if is_over(row)]
    worst = max(rows, key=lambda row: row["ratio"] / row["bar"])
    verdict = "FAILED" if over else "ok"
    print(f"netbed: {verdict} rows={len(rows)} over={len(over)} worst={worst['ratio']:.3f}"
          f" of=({worst['workers']},{worst['servers']})")
    return 1 if over else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Failed as failure:
        print(f"netbed: FAILED {failure}")
        sys.exit(1)

"""A step of examples/char_gpt on two workers with a summation server, in the bed of bench/bed.py with 200 Mbit/s each, beside the larger
of two times: that of a step without averaging, while both workers compute, and the least that the network takes for the sums. Once with
the example's own batches, where two cores are the limit, and once with smaller ones, where the network is.
"""

import json
import os
import re
import secrets
import statistics
import tempfile

import programs
from bed import PORT, Bed, finished, least_time
from processes import Failed

BATCHES = {"char_gpt_servers": 32, "char_gpt_servers_batch_8": 8}  # by case
WORKERS = 2
RATE = "200mbit"
STEPS, LENGTH = 200, 32  # fewer steps than the example's own
SAME_LOSS = 1e-4  # what sums in another order may change


class Runs:
    """Of char_gpt in the bed, with so large batches, and a folder for what they write."""

    def __init__(self, build, bed, batch, folder):
        self.build, self.bed, self.batch, self.folder = build, bed, batch, folder
        self.number = 0

    def run(self, jobs, average_by):
        """Jobs, each a list of machines, at the same time, the last one of three a server. The metrics of each, and what rank 0 of the
        first one printed."""
        started, folders = [], []
        try:
            for job in jobs:
                self.number += 1
                folders.append(os.path.join(self.folder, str(self.number)))
                shared = {"TREADLE_WORLD_SIZE": len(job), "TREADLE_MASTER": f"{self.bed.address(job[0])}:{PORT}",
                          "TREADLE_JOB_KEY": secrets.token_hex(16), "TREADLE_SERVERS": max(0, len(job) - WORKERS),
                          "TREADLE_CHANNELS": "tcp,lanes"}  # no UNIX sockets, which pass the network by
                train = [self.build / "bin" / "char_gpt", "--steps", STEPS, "--batch", self.batch, "--length", LENGTH, "--sample", 0,
                         "--average-by", average_by, "--run-folder", folders[-1],
                         *(["--overlap-forward"] if average_by == "service" else [])]
                for rank, machine in enumerate(job):
                    program = train if rank < WORKERS else [self.build / "bin" / "treadle", "server"]
                    started.append(self.bed.start(machine, *program, environment={**shared, "TREADLE_RANK": rank}))
            texts = [finished(one, programs.TRAINING_TIMEOUT) for one in started]
        finally:
            for one in started:
                one.kill()
        metrics = []
        for folder in folders:
            with open(os.path.join(folder, "metrics.jsonl"), encoding="utf-8") as file:
                metrics.append([json.loads(line) for line in file])
        return metrics, texts[0]


def lines_of(metrics, training):
    return [line for line in metrics if line["training"] == training]


def step_seconds(metrics, workers, batch):
    """The first line is that of the first step, which allocates what the others use again."""
    lines = lines_of(metrics, f"{workers} worker{'s' if workers > 1 else ''}")[1:]
    return statistics.median(workers * batch * LENGTH / line["tokens_per_s"] for line in lines)


def check_losses(with_server, without):
    losses = [[line["validation_loss"] for line in lines_of(metrics, f"{WORKERS} workers")] for metrics in (with_server, without)]
    if len(losses[0]) != len(losses[1]) or any(abs(a - b) > SAME_LOSS for a, b in zip(*losses)):
        raise Failed(f"the validation losses with a server are {losses[0]}, and without {losses[1]}")


def lines_of_case(case, build, bed, bandwidth):
    batch = BATCHES[case]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        runs = Runs(build, bed, batch, folder)
        alone, text = runs.run([[machine] for machine in range(WORKERS)], "group")
        [with_server], _ = runs.run([[0, 1, 2]], "service")
        [without], _ = runs.run([[0, 1]], "group")
    check_losses(with_server, without)
    size = 4 * int(re.search(r"the model has (\d+) parameters", text).group(1))
    compute = max(step_seconds(metrics, 1, batch) for metrics in alone)
    limit = max(compute, least_time(WORKERS, 1, size, bandwidth))
    line = {"case": case, "unit": "us"}
    return [json.dumps({**line, "median": 1e6 * step_seconds(with_server, WORKERS, batch)}),
            json.dumps({**line, "of": "network_or_compute", "median": 1e6 * limit})]


def launch(settings, cases):
    with Bed(WORKERS + 1, RATE) as bed:
        bandwidth = bed.goodput()
        return [line for case in cases for line in lines_of_case(case, settings.build, bed, bandwidth)]


LAUNCHES = [programs.Launch("ours", launch, tuple(BATCHES))]

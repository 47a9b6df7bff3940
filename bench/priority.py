"""How long a worker waits after its backward pass for the sums of the first layer, which its next forward pass needs first, where
communication takes longer than the pass: the summation service sends the front layers first, and is compared with itself
where tensors that are offered first go first. In the bed of bench/bed.py, 4 workers and 2 servers with 200 Mbit/s.
"""

import json
import statistics

import programs
from bed import Service

CASE = "priority_first_layer"
WORKERS, SERVERS = 4, 2
MODEL, BYTES = "vgg16", 64_000_000
BACKWARD_MS = 1500  # half of the least time that the sums take
RATE, ROUNDS = "200mbit", 3


def launch(settings, _cases):
    common = ["--model", MODEL, "--backward-ms", BACKWARD_MS]
    with Service(settings.build, WORKERS, SERVERS, RATE, ROUNDS) as service:
        by_priority = service.sums(BYTES, *common).seconds
        first_come = service.sums(BYTES, *common, "--first-come").seconds
    ours, other = (1e6 * statistics.median(seconds) for seconds in (by_priority, first_come))
    line = {"case": CASE, "unit": "us"}
    return [json.dumps({**line, "median": ours}), json.dumps({**line, "of": "first_come", "median": other})]


LAUNCHES = [programs.Launch("ours", launch, (CASE,))]

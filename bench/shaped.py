"""Training steps where the network is the limit: two network namespaces with 200 Mbit/s between them each way.

A step can be no faster than its computation, nor than an all-reduce of its gradients: the larger of both is what ours is compared
with, beside torch's DDP in the same network.
"""

import json

import experiment
import namespaces
import programs
from figures import lines_of
from processes import run_together

RATE = "200mbit"
REPETITIONS = 4  # 8 pairs of steps of the transformer, 80 of the CNN; a step of the transformer takes most of a second
CASES = ("ddp_200mbit_transformer", "ddp_200mbit_cnn")


def median_of(lines, case):
    return next(line["median"] for line in lines if line["case"] == case)


def ours(settings, places, model):
    program = settings.build / "bench" / "treadle_bench_ddp"
    command = [program, "--model", model, "--repetitions", REPETITIONS]
    lines = lines_of("\n".join(experiment.ours_between(places, command, programs.TRAINING_TIMEOUT)))
    limits = [median_of(lines, f"ddp_{part}_{model}") for part in ("compute", "communication")]
    return [{"median": median_of(lines, f"ddp_step_{model}")}, {"of": "network_or_compute", "median": max(limits)}]


def torch_ddp(settings, places, model):
    command = [settings.python, programs.PEERS / "torch_ddp.py", "--port", programs.free_port(), "--model", model]
    command += ["--master", places[0].address, "--repetitions", REPETITIONS]
    pair = [
        [*places[rank].prefix, *command, "--rank", rank, "--interface", places[rank].interface] for rank in (1, 0)
    ]
    lines = lines_of("\n".join(run_together("torch's DDP", pair, programs.TRAINING_TIMEOUT)))
    return [{"median": median_of(lines, f"ddp_step_{model}")}]


def over_shaped_network(start):
    def launch(settings, cases):
        lines = []
        for case in cases:
            with namespaces.two_namespaces(RATE) as places:
                found = start(settings, places, programs.model_of([case]))
            lines += [json.dumps({"case": case, "unit": "us", **line}) for line in found]
        return lines

    return launch


LAUNCHES = [
    programs.Launch("ours", over_shaped_network(ours), CASES),
    programs.Launch("torch_ddp", over_shaped_network(torch_ddp), CASES),
]

"""How the programs of the field's first experiment are started (bench/seed.py), on the loopback or in two network namespaces."""

import json
import os
import secrets

import namespaces
import programs
from figures import lines_of
from processes import run, run_together

# The experiment's cases that are rows of the benchmark where they run in two namespaces, and the rows' names.
NETWORK_CASES = {
    "fetch_4MB": "fetch_4MB_network",
    "fetch_40MB": "fetch_40MB_network",
    "identity_40MB": "identity_10x40MB_network",
}


def ours_between(places, command, timeout):
    """A job of two workers, by hand what `treadle run` does on one host."""
    shared = ["WORLD_SIZE=2", f"MASTER_ADDR={places[0].address}", f"MASTER_PORT={programs.free_port()}"]
    shared.append(f"TREADLE_JOB_KEY={secrets.token_hex(16)}")
    pair = [
        [*place.prefix, "env", f"RANK={rank}", *shared, *command, "--listen", f"tcp://{place.address}:0"]
        for rank, place in reversed(list(enumerate(places)))
    ]
    return run_together("ours", pair, timeout)


def ours(settings, places, arguments, timeout):
    program = settings.build / "bench" / "treadle_bench_seed"
    if places == namespaces.LOOPBACK:
        return [run("ours", settings.job(2, program, *arguments), timeout)]
    return ours_between(places, [program, *arguments], timeout)


def pytorch(settings, places, arguments, timeout):
    command = [settings.python, programs.PEERS / "torch_seed.py", "--port", programs.free_port()]
    command += ["--master", places[0].address, *arguments]
    pair = [
        [*places[rank].prefix, *command, "--rank", rank, "--interface", places[rank].interface] for rank in (1, 0)
    ]
    return run_together("PyTorch RPC", pair, timeout)


def grpc(settings, places, arguments, timeout):
    program = settings.grpc_build / "grpc_seed"
    if places == namespaces.LOOPBACK:
        addresses = [f"unix-abstract:treadle-seed-{os.getpid()}-{rank}" for rank in (0, 1)]
    else:
        addresses = [f"{place.address}:{programs.free_port()}" for place in places]
    serve = [*places[1].prefix, program, "--own", addresses[1]]
    call = [*places[0].prefix, program, "--own", addresses[0], "--call", addresses[1], *arguments]
    return run_together("gRPC", [serve, call], timeout)


def over_network(start):
    """A launch of the benchmark's rows between two namespaces."""

    def launch(settings, cases):
        repetitions = max(3, settings.repetitions // 4)
        arguments = ["--sizes", "4,40", "--pointwise-up-to", 0, "--repetitions", repetitions]
        with namespaces.two_namespaces() as places:
            lines = lines_of("\n".join(start(settings, places, arguments, settings.timeout)))
        named = [{**line, "case": NETWORK_CASES.get(line["case"])} for line in lines]
        return [json.dumps(line) for line in named if line["case"] in cases]

    return launch


LAUNCHES = [
    programs.Launch("ours", over_network(ours), tuple(NETWORK_CASES.values())),
    programs.Launch("pytorch", over_network(pytorch), tuple(NETWORK_CASES.values())),
]

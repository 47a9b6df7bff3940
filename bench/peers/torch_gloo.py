"""Collective operations of torch.distributed over gloo: as bench/ours/collectives.cc. Rank 0 prints lines of JSON.

One process for each rank: the ranks of a case `allreduce_4x10MB` are 0 to 3.
"""

import argparse

import torch
import torch.distributed as dist
from torch_rpc import show, timed

MEGABYTE = 1 << 18  # in floats
SIZES = {"100floats": 100, "4KB": 1 << 10, "1MB": MEGABYTE, "10MB": 10 * MEGABYTE, "100MB": 100 * MEGABYTE}
ROOT = 1
WARM_UP = 3


def repetitions_of(floats, repetitions):
    return repetitions * (50 if floats <= 1 << 10 else 3 if floats <= 10 * MEGABYTE else 1)


def operation_of(name, floats):
    """The input, the output and what starts the operation: as bench/ours/collectives.cc."""
    members = dist.get_world_size()
    parts = {"allgather": (members, 1), "reducescatter": (1, members)}.get(name, (1, 1))
    given, got = (torch.empty(floats // count) for count in parts)
    start = {
        "allreduce": lambda: dist.all_reduce(given),
        "broadcast": lambda: dist.broadcast(given, ROOT),
        "alltoall": lambda: dist.all_to_all_single(got, given),
        "reducescatter": lambda: dist.reduce_scatter_tensor(got, given),
        "allgather": lambda: dist.all_gather_into_tensor(got, given),
    }[name]
    return given, given if name in ("allreduce", "broadcast") else got, start


def check(name, result):
    """Of rank 0. Every member gave its rank + 1 everywhere."""
    members = dist.get_world_size()
    parts = result.view(members if name in ("allgather", "alltoall") else 1, -1)
    for part, values in enumerate(parts):
        total = members * (members + 1) / 2
        want = total if name in ("allreduce", "reducescatter") else ROOT + 1 if name == "broadcast" else part + 1
        if values.min() != want or values.max() != want:
            raise RuntimeError(f"{name} brought a wrong value")


def measure(case, repetitions):
    name, _, shape = case.partition("_")
    floats = SIZES[shape.split("x")[1]]
    given, result, start = operation_of(name, floats)

    def write():
        result.zero_()
        given.fill_(dist.get_rank() + 1)
        dist.barrier()

    times = timed(WARM_UP, repetitions_of(floats, repetitions), write, start)
    if dist.get_rank() == 0:
        check(name, result)
    return times


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--cases", required=True, help="<operation>_<members>x<100floats, 4KB, 1MB, 10MB or 100MB>,...")
    parser.add_argument("--repetitions", type=int, default=20, help="of 100 MB")
    options = parser.parse_args()
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{options.port}"
    dist.init_process_group("gloo", init_method=address, rank=options.rank, world_size=options.members)
    for case in options.cases.split(","):
        times = measure(case, options.repetitions)
        if options.rank == 0:
            show(case, times)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Collective operations of torch.distributed over gloo: as bench/ours/collectives.cc. Rank 0 prints lines of JSON.

One process for each rank: the ranks of a case `allreduce_4x10MB` are 0 to 3.
"""

import argparse

import torch
import torch.distributed as dist
from torch_rpc import show, timed

FLOATS_PER_KILOBYTE = 256
SIZES = {"4KB": 4, "1MB": 1 << 10, "10MB": 10 << 10, "100MB": 100 << 10}
WARM_UP = 3


def repetitions_of(kilobytes, repetitions):
    return repetitions * (50 if kilobytes <= 4 else 3 if kilobytes <= 10 << 10 else 1)


def all_reduce(size, repetitions):
    members = dist.get_world_size()
    tensor = torch.empty(SIZES[size] * FLOATS_PER_KILOBYTE)

    def write():
        tensor.fill_(dist.get_rank() + 1)
        dist.barrier()

    times = timed(WARM_UP, repetitions_of(SIZES[size], repetitions), write, lambda: dist.all_reduce(tensor))
    if tensor.min() != members * (members + 1) / 2 or tensor.max() != members * (members + 1) / 2:
        raise RuntimeError("a wrong sum")
    return times


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--cases", required=True, help="allreduce_<members>x<4KB, 1MB, 10MB or 100MB>,...")
    parser.add_argument("--repetitions", type=int, default=20, help="of 100 MB")
    options = parser.parse_args()
    torch.set_num_threads(1)
    address = f"tcp://127.0.0.1:{options.port}"
    dist.init_process_group("gloo", init_method=address, rank=options.rank, world_size=options.members)
    for case in options.cases.split(","):
        times = all_reduce(case.split("x")[1], options.repetitions)
        if options.rank == 0:
            show(case, times)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

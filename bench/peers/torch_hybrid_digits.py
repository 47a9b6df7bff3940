"""The job of examples/hybrid_digits on PyTorch's own RPC: what bench/hybrid.py compares Treadle with.

A parameter server with an EmbeddingBag behind RemoteModule, two trainers whose Linear is wrapped in
DistributedDataParallel (gloo), torch.distributed.autograd, DistributedOptimizer with SGD 0.05; batches of 32,
10 epochs, one intra-op thread per process. Weights begin as in examples/hybrid_digits/hybrid_model.cc. The time is
that of the steps, from the first to the last, as the trainers see it. Ends with one line:

    torch_hybrid_digits: test accuracy 0.9xx, NNN steps/s per trainer, S.S s
"""

import argparse
import csv
import pathlib
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.nn import RemoteModule
from torch.distributed.optim import DistributedOptimizer
from torch.nn.parallel import DistributedDataParallel

NAMES = ["trainer0", "trainer1", "master", "ps"]
TRAIN, BATCH, LEVELS, WIDTH = 1437, 32, 17, 16
DIGITS = pathlib.Path(__file__).resolve().parents[2] / "examples" / "data" / "digits.csv"


def load_digits(path, seed):
    """Indices [N, 64] into the bag and labels [N], shuffled by seed."""
    with open(path, newline="", encoding="ascii") as file:
        rows = torch.tensor([[int(value) for value in row] for row in list(csv.reader(file))[1:]])
    rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))]
    return rows[:, :64] + LEVELS * torch.arange(64), rows[:, 64]


def first_bag_weight(seed):
    return torch.empty(64 * LEVELS, WIDTH).normal_(0, 0.01, generator=torch.Generator().manual_seed(seed))


def make_linear(seed):
    linear = nn.Linear(WIDTH, 10)
    random = torch.randn(WIDTH, 10, generator=torch.Generator().manual_seed(seed + 1))
    with torch.no_grad():
        linear.weight.copy_(2 * torch.linalg.qr(random)[0].t())
        linear.bias.zero_()
    return linear


class HybridModel(nn.Module):
    def __init__(self, bag, seed):
        super().__init__()
        self.bag = bag
        self.linear = DistributedDataParallel(make_linear(seed))

    def forward(self, indices):
        flat = indices.reshape(-1)
        return self.linear(self.bag.forward(flat, torch.arange(0, flat.numel(), 64)))


def train(bag, rank, options):
    """Runs on a trainer. Returns steps/s and the test accuracy."""
    indices, labels = load_digits(options.data, options.seed)
    model = HybridModel(bag, options.seed)
    parameters = bag.remote_parameters() + [rpc.RRef(parameter) for parameter in model.linear.parameters()]
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=0.05)
    loss_of = nn.CrossEntropyLoss()
    own_indices, own_labels = indices[:TRAIN][rank::2].contiguous(), labels[:TRAIN][rank::2].contiguous()
    starts = [step * BATCH for step in range(TRAIN // 2 // BATCH)]
    begin = time.perf_counter()
    for _ in range(options.epochs):
        for start in starts:
            with dist_autograd.context() as context:
                loss = loss_of(model(own_indices[start : start + BATCH]), own_labels[start : start + BATCH])
                dist_autograd.backward(context, [loss])
                optimizer.step(context)
    seconds = time.perf_counter() - begin
    with torch.no_grad():
        right = model(indices[TRAIN:]).argmax(1) == labels[TRAIN:]
    return options.epochs * len(starts) / seconds, right.float().mean().item()


def run_master(options):
    bag = RemoteModule(
        "ps",
        nn.EmbeddingBag,
        args=(64 * LEVELS, WIDTH),
        kwargs={"mode": "sum", "_weight": first_bag_weight(options.seed)},
    )
    begin = time.perf_counter()
    futures = [
        rpc.rpc_async(NAMES[rank], train, args=(bag, rank, options), timeout=options.timeout)
        for rank in range(2)
    ]
    results = [future.wait() for future in futures]
    seconds = time.perf_counter() - begin
    rate = sum(rate for rate, _ in results) / 2
    print(
        f"torch_hybrid_digits: test accuracy {results[0][1]:.3f}, {rate:.1f} steps/s per trainer, "
        f"{seconds:.1f} s",
        flush=True,
    )


def run_process(rank, ports, options):
    torch.set_num_threads(1)
    if rank < 2:
        dist.init_process_group("gloo", rank=rank, world_size=2, init_method=f"tcp://127.0.0.1:{ports[0]}")
    backend = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://127.0.0.1:{ports[1]}")
    rpc.init_rpc(NAMES[rank], rank=rank, world_size=4, rpc_backend_options=backend)
    if NAMES[rank] == "master":
        run_master(options)
    rpc.shutdown()
    if rank < 2:
        dist.destroy_process_group()


def free_ports(count):
    """Ports that were free a moment ago; held together so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [server.getsockname()[1] for server in held]
    for server in held:
        server.close()
    return ports


def run_job(options):
    """Starts the four processes; ends them all when one fails or the time is up."""
    deadline = time.monotonic() + options.timeout
    processes = mp.start_processes(
        run_process, args=(free_ports(2), options), nprocs=4, join=False, start_method="spawn"
    )
    try:
        while not processes.join(timeout=max(0.0, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                sys.exit(f"torch_hybrid_digits: not done within {options.timeout:g} s")
    finally:
        for process in processes.processes:
            if process.is_alive():
                process.kill()


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=pathlib.Path, default=DIGITS)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=180, help="seconds for the whole job")
    options = parser.parse_args()
    if not options.data.is_file():
        sys.exit(f"torch_hybrid_digits: {options.data}: there is no such file")
    run_job(options)


if __name__ == "__main__":
    main()

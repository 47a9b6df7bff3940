"""Training steps with torch's DistributedDataParallel over gloo: as bench/ours/ddp.cc. Rank 0 prints lines of JSON.

    python torch_ddp.py --rank 1 --port 4567 --model cnn &
    python torch_ddp.py --rank 0 --port 4567 --model cnn

DistributedDataParallel and SGD have their defaults (gradients are not views of the buckets, for instance).
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch_models import CASES, fill_parameters, samples_of
from torch_rpc import show

RANKS, WARM_UP, LOSSES_AT_END, AHEAD_SECONDS = 2, 5, 5, 0.001


def line_up():
    """Returns at the same moment in all processes: see bench/ours/ddp.cc."""
    start = torch.full((1,), time.monotonic() + AHEAD_SECONDS, dtype=torch.float64)
    dist.broadcast(start, 0)
    moment = start.item()
    while time.monotonic() < moment:
        pass


class Training:
    def __init__(self, case):
        self.case = case
        self.alone, averaged = case.make_model(), case.make_model()
        fill_parameters(self.alone)
        fill_parameters(averaged)
        self.averaged = DistributedDataParallel(averaged)
        self.alone_optimizer = torch.optim.SGD(self.alone.parameters(), lr=case.learning_rate)
        self.optimizer = torch.optim.SGD(self.averaged.parameters(), lr=case.learning_rate)

    def time_of_step(self, model, optimizer, batch):
        """Microseconds, and the loss."""
        line_up()
        begin = time.perf_counter()
        optimizer.zero_grad()
        loss = self.case.loss_of(model, *batch)
        loss.backward()
        optimizer.step()
        taken = (time.perf_counter() - begin) * 1e6
        return taken, loss.item()

    def run(self, pairs):
        """Timed pairs of steps, [3, pairs]: microseconds of the step, of the step without averaging, and the loss."""
        figures = torch.empty(3, pairs, dtype=torch.float64)
        for pair in range(-WARM_UP, pairs):
            batch = self.case.get_batch(samples_of(self.case, pair + WARM_UP, dist.get_rank(), RANKS))
            if pair % 2 == 0:
                step, loss = self.time_of_step(self.averaged, self.optimizer, batch)
            compute, _ = self.time_of_step(self.alone, self.alone_optimizer, batch)
            if pair % 2 != 0:
                step, loss = self.time_of_step(self.averaged, self.optimizer, batch)
            if pair >= 0:
                figures[:, pair] = torch.tensor([step, compute, loss], dtype=torch.float64)
        return figures


def show_all(name, ranks):
    """`ranks`: the figures of each. A step takes as long as it takes the slowest rank."""
    step, compute, _ = torch.stack(ranks).amax(0)
    losses = torch.stack(ranks).mean(0)[2]
    show(f"ddp_exposed_{name}", (step - compute).tolist())
    show(f"ddp_step_{name}", step.tolist())
    show(f"ddp_compute_{name}", compute.tolist())
    show(f"ddp_loss_{name}", [losses[-LOSSES_AT_END:].mean().item()], "nats")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, required=True, choices=range(RANKS))
    parser.add_argument("--port", type=int, required=True, help="free port of rank 0 for the two to meet")
    parser.add_argument("--master", default="127.0.0.1", help="address of rank 0")
    parser.add_argument("--interface", help="of the network between the two, if they are not on one host")
    parser.add_argument("--model", required=True, choices=CASES)
    parser.add_argument("--repetitions", type=int, default=20, help="2 timed pairs of steps each, of the cnn 20")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.interface:
        os.environ["GLOO_SOCKET_IFNAME"] = options.interface
    address = f"tcp://{options.master}:{options.port}"
    dist.init_process_group("gloo", init_method=address, rank=options.rank, world_size=RANKS)
    case = CASES[options.model]()
    figures = Training(case).run(options.repetitions * case.pairs)
    ranks = [torch.empty_like(figures) for _ in range(RANKS)]
    dist.all_gather(ranks, figures)
    if options.rank == 0:
        show_all(options.model, ranks)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""The field's first experiment with PyTorch RPC: as bench/ours/seed.cc.

What a user has to write beyond the functions themselves stands between `# [` and `# ]`; bench/seed.py counts those
lines. Rank 0 calls rank 1 and prints lines of JSON.
"""

import argparse
import os

import torch
import torch.distributed.rpc as rpc
from torch_rpc import FLOATS_PER_MEGABYTE, show, timed


def identity(tensor):
    return tensor


def pointwise(tensor):
    for _ in range(100):
        tensor = (tensor * 1.0001).add(0.0001)
    return tensor


# [
def fetch(tensor):
    return tensor.to_here().numel()
    # ]


def ten_at_once(function, tensor):
    # [
    results = [rpc.rpc_async("worker1", function, args=(tensor,), timeout=0) for _ in range(10)]
    torch.futures.wait_all(results)
    # ]


def fetch_by_reference(tensor):
    # [
    rpc.rpc_sync("worker1", fetch, args=(rpc.RRef(tensor),))
    # ]


def join(options):
    # [
    backend = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{options.master}:{options.port}")
    # ]
    if options.interface != "lo":
        # Two hosts, as far as TensorPipe is concerned: memory and UNIX sockets are not to be tried.
        os.environ["TP_SOCKET_IFNAME"] = os.environ["GLOO_SOCKET_IFNAME"] = options.interface
        backend = rpc.TensorPipeRpcBackendOptions(
            init_method=backend.init_method, _transports=["uv"], _channels=["basic"]
        )
    # [
    rpc.init_rpc(f"worker{options.rank}", rank=options.rank, world_size=2, rpc_backend_options=backend)
    # ]


def measure(options, size):
    tensor = torch.rand(size * FLOATS_PER_MEGABYTE)
    few = 1 if size > 40 else options.repetitions  # what takes long is measured once
    times = timed(1, few, tensor.uniform_, lambda: ten_at_once(identity, tensor))
    show(f"identity_{size}MB", times)
    times = timed(1, few, tensor.uniform_, lambda: fetch_by_reference(tensor))
    show(f"fetch_{size}MB", times)
    if size <= options.pointwise_up_to:
        count = 1 if size > 4 else options.repetitions
        show(f"pointwise_{size}MB", timed(0, count, tensor.uniform_, lambda: ten_at_once(pointwise, tensor)))


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, required=True, choices=(0, 1))
    parser.add_argument("--master", default="127.0.0.1", help="address of rank 0")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--interface", default="lo", help="network interface of this rank")
    parser.add_argument("--sizes", default="4,40,400", help="in MB")
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--pointwise-up-to", type=int, default=40, help="MB; larger tensors take minutes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    join(options)
    if options.rank == 0:
        for size in options.sizes.split(","):
            measure(options, int(size))
    # [
    rpc.shutdown()
    # ]


if __name__ == "__main__":
    main()

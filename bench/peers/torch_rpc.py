"""PyTorch RPC (TensorPipe) in the cases of bench/rows.py: two processes, of whom rank 0 calls rank 1.

    python torch_rpc.py --rank 1 --port 4567 --cases call_empty &
    python torch_rpc.py --rank 0 --port 4567 --cases call_empty

Rank 0 prints lines of JSON as bench/figures.py reads them. The same warm-up and repetitions as bench/ours.
"""

import argparse
import collections
import json
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc

CALLEE = "worker1"
FLOATS_PER_MEGABYTE = 1 << 18
CALLS_IN_FLIGHT = 5000


def nothing():
    return None


def identity(tensor):
    return tensor


def few(repetitions):
    """Fewer runs of what takes long."""
    return max(3, repetitions // 4)


def timed(warm_up, repetitions, prepare, body):
    """Microseconds of each; `prepare` goes before and is not counted."""
    times = []
    for number in range(warm_up + repetitions):
        prepare()
        begin = time.perf_counter()
        body()
        if number >= warm_up:
            times.append((time.perf_counter() - begin) * 1e6)
    return times


def call_empty(repetitions):
    return timed(500, 200 * repetitions, lambda: None, lambda: rpc.rpc_sync(CALLEE, nothing))


def async_call(repetitions):
    def body():
        torch.futures.wait_all([rpc.rpc_async(CALLEE, nothing) for _ in range(CALLS_IN_FLIGHT)])

    return [each / CALLS_IN_FLIGHT for each in timed(1, few(repetitions), lambda: None, body)]


def identity_of(megabytes):
    def measure(repetitions):
        count = 3 * repetitions if megabytes < 40 else few(repetitions) if megabytes > 40 else repetitions
        tensor = torch.rand(megabytes * FLOATS_PER_MEGABYTE)
        return timed(3, count, tensor.uniform_, lambda: rpc.rpc_sync(CALLEE, identity, args=(tensor,)))

    return measure


def ten_identities(repetitions):
    tensor = torch.rand(40 * FLOATS_PER_MEGABYTE)

    def body():
        torch.futures.wait_all([rpc.rpc_async(CALLEE, identity, args=(tensor,)) for _ in range(10)])

    return timed(1, few(repetitions), tensor.uniform_, body)


def pointwise(tensor):
    for _ in range(100):
        tensor = (tensor * 1.0001).add(0.0001)
    return tensor


def ten_pointwise(_):
    """Once, without a warm-up: it takes long."""
    tensor = torch.rand(40 * FLOATS_PER_MEGABYTE)

    def body():
        torch.futures.wait_all([rpc.rpc_async(CALLEE, pointwise, args=(tensor,)) for _ in range(10)])

    return timed(0, 1, lambda: None, body)


WIDTH, BATCH, CALLS_OF_A_CHAIN = 1000, 32, 50


def second_layer(hidden):
    if not hasattr(second_layer, "layer"):
        second_layer.layer = torch.nn.Linear(WIDTH, WIDTH)
    return second_layer.layer(hidden)


def time_of(body):
    begin = time.perf_counter()
    result = body()
    return (time.perf_counter() - begin) * 1e6, result


def layers():
    return torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.rand(BATCH, WIDTH)


def autograd_forward_overhead(repetitions):
    """Two layers forward: both here, the second one there without gradients, and with them."""
    here, there, inputs = layers()
    columns = collections.defaultdict(list)

    def remote():
        return rpc.rpc_sync(CALLEE, second_layer, args=(here(inputs),))

    def without_gradients():
        with torch.no_grad():
            return remote()

    for number in range(-10, 5 * repetitions):
        norpc, _ = time_of(lambda: there(here(inputs)))
        nograd, _ = time_of(without_gradients)
        begin = time.perf_counter()
        with dist_autograd.context():
            remote()
            grad = (time.perf_counter() - begin) * 1e6
        if number >= 0:
            columns["autograd_forward_overhead"].append(grad - norpc)
            columns["autograd_norpc_fwd"].append(norpc)
            columns["autograd_nograd_fwd"].append(nograd)
            columns["autograd_grad_fwd"].append(grad)
    return columns


def autograd_backward_overhead(repetitions):
    """The same backward."""
    here, there, inputs = layers()
    columns = collections.defaultdict(list)
    for number in range(-10, 5 * repetitions):
        norpc, _ = time_of(there(here(inputs)).sum().backward)
        with dist_autograd.context() as context:
            loss = rpc.rpc_sync(CALLEE, second_layer, args=(here(inputs),)).sum()
            begin = time.perf_counter()
            dist_autograd.backward(context, [loss])
            grad = (time.perf_counter() - begin) * 1e6
        if number >= 0:
            columns["autograd_backward_overhead"].append(grad - norpc)
            columns["autograd_norpc_bwd"].append(norpc)
            columns["autograd_grad_bwd"].append(grad)
    return columns


def twice(tensor):
    return tensor * 2


def autograd_chain_100(repetitions):
    def body():
        with dist_autograd.context() as context:
            tensor = torch.rand(BATCH, requires_grad=True)
            for _ in range(CALLS_OF_A_CHAIN):
                tensor = rpc.rpc_sync(CALLEE, twice, args=(tensor,))
            dist_autograd.backward(context, [tensor.sum()])

    return timed(10, repetitions, lambda: None, body)


CASES = {
    "autograd_forward_overhead": autograd_forward_overhead,
    "autograd_backward_overhead": autograd_backward_overhead,
    "autograd_chain_100": autograd_chain_100,
    "call_empty": call_empty,
    "async_call": async_call,
    "identity_4MB": identity_of(4),
    "identity_40MB": identity_of(40),
    "identity_400MB": identity_of(400),
    "concurrent_10x40MB": ten_identities,
    "pointwise_10x40MB": ten_pointwise,
}


def show(case, times, unit="us"):
    times.sort()

    def at(percent):
        return times[min(len(times) - 1, len(times) * percent // 100)]

    figures = {"median": at(50), "p10": at(10), "p90": at(90), "p99": at(99), "count": len(times)}
    print(json.dumps({"case": case, "unit": unit, **figures}), flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rank", type=int, required=True, choices=(0, 1))
    parser.add_argument("--port", type=int, required=True, help="free port of 127.0.0.1 for the two to meet")
    parser.add_argument("--cases", required=True, help=", ".join(CASES))
    parser.add_argument("--repetitions", type=int, default=20)
    options = parser.parse_args()
    torch.set_num_threads(1)
    backend = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=16, rpc_timeout=120, init_method=f"tcp://127.0.0.1:{options.port}"
    )
    rpc.init_rpc(f"worker{options.rank}", rank=options.rank, world_size=2, rpc_backend_options=backend)
    if options.rank == 0:
        for case in options.cases.split(","):
            measured = CASES[case](options.repetitions)
            for name, times in measured.items() if isinstance(measured, dict) else [(case, measured)]:
                show(name, times)
    rpc.shutdown()


if __name__ == "__main__":
    main()

"""PyTorch RPC (TensorPipe) in the cases of bench/rows.py: two processes, of whom rank 0 calls rank 1.

    python torch_rpc.py --rank 1 --port 4567 --cases call_empty &
    python torch_rpc.py --rank 0 --port 4567 --cases call_empty

Rank 0 prints lines of JSON as bench/figures.py reads them. The same warm-up and repetitions as bench/ours.
"""

import argparse
import collections
import json
import math
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


def once(body):
    return timed(0, 1, nothing, body)[0]


def columns_of_two_layers():
    """Of table 2 in the paper: functions that yield the microseconds of a pass. What a column does not name goes
    before and is not counted."""
    here, there = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, WIDTH)
    inputs = torch.rand(BATCH, WIDTH)

    def local():
        return there(here(inputs))

    def remote():
        return rpc.rpc_sync(CALLEE, second_layer, args=(here(inputs),))

    def nograd():
        with torch.no_grad():
            remote()

    def grad_fwd():
        begin = time.perf_counter()
        with dist_autograd.context():
            remote()
            return (time.perf_counter() - begin) * 1e6

    def grad_bwd():
        with dist_autograd.context() as context:
            loss = remote().sum()
            return once(lambda: dist_autograd.backward(context, [loss]))

    return {
        "norpc_fwd": lambda: once(local),
        "nograd_fwd": lambda: once(nograd),
        "grad_fwd": grad_fwd,
        "norpc_bwd": lambda: once(local().sum().backward),
        "grad_bwd": grad_bwd,
    }


def lap_of(columns, number):
    """One of each, in one of 20 orders, so that within laps each column comes after each other equally often."""
    names = list(columns)
    step = 1 + number // len(names) % (len(names) - 1)
    order = [names[(number + step * place) % len(names)] for place in range(len(names))]
    return {name: columns[name]() for name in order}


def differences(times):
    """Of one lap, thus of pairs."""
    forward, backward = times["grad_fwd"] - times["norpc_fwd"], times["grad_bwd"] - times["norpc_bwd"]
    return {
        "forward_overhead": forward,
        "backward_overhead": backward,
        "added_forward": times["grad_fwd"] - times["nograd_fwd"],
        "added_backward": backward - (times["nograd_fwd"] - times["norpc_fwd"]),
    }


def autograd_two_layers(repetitions):
    columns = columns_of_two_layers()
    series = collections.defaultdict(list)
    for number in range(10 + 10 * repetitions):
        times = lap_of(columns, number)
        if number >= 10:
            for name, value in {**times, **differences(times)}.items():
                series[f"autograd_{name}"].append(value)
    return series


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
    "autograd_two_layers": autograd_two_layers,
    "autograd_chain_100": autograd_chain_100,
    "call_empty": call_empty,
    "async_call": async_call,
    "identity_4MB": identity_of(4),
    "identity_40MB": identity_of(40),
    "identity_400MB": identity_of(400),
    "concurrent_10x40MB": ten_identities,
    "pointwise_10x40MB": ten_pointwise,
}


def begin_of_interval(count):
    """As in bench/ours/measure.cc: where the 95% interval of the median of sorted values begins."""
    return max(0, math.floor(count / 2 - 0.98 * math.sqrt(count)) - 1)


def show(case, times, unit="us"):
    times.sort()
    begin = begin_of_interval(len(times))

    def at(percent):
        return times[min(len(times) - 1, len(times) * percent // 100)]

    figures = {"median": at(50), "low": times[begin], "high": times[-1 - begin]}
    figures |= {"p10": at(10), "p90": at(90), "p99": at(99), "count": len(times)}
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

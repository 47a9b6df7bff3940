"""PyTorch RPC (TensorPipe) in the cases of bench/rows.py: two processes, of whom rank 0 calls rank 1.

    python torch_rpc.py --rank 1 --port 4567 --cases call_empty &
    python torch_rpc.py --rank 0 --port 4567 --cases call_empty

Rank 0 prints lines of JSON as bench/figures.py reads them. The same warm-up and repetitions as bench/ours.
"""

import argparse
import json
import time

import torch
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


CASES = {
    "call_empty": call_empty,
    "async_call": async_call,
    "identity_4MB": identity_of(4),
    "identity_40MB": identity_of(40),
    "identity_400MB": identity_of(400),
    "concurrent_10x40MB": ten_identities,
}


def show(case, times):
    times.sort()

    def at(percent):
        return times[min(len(times) - 1, len(times) * percent // 100)]

    figures = {"median": at(50), "p10": at(10), "p90": at(90), "p99": at(99), "count": len(times)}
    print(json.dumps({"case": case, "unit": "us", **figures}), flush=True)


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
            show(case, CASES[case](options.repetitions))
    rpc.shutdown()


if __name__ == "__main__":
    main()

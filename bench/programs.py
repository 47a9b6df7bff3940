"""How each measuring program is started, and what one start of it measures."""

import dataclasses
import json
import os
import pathlib
import re
import socket
import sys

import figures
from processes import require, run, run_together

ROOT = pathlib.Path(__file__).resolve().parents[1]
PEERS = ROOT / "bench" / "peers"
IDLE_PEERS = 200
TRAINING_TIMEOUT = 600  # seconds, for 90 steps of the transformer: 40 on a quiet machine, six times that on a busy one
IDLE_SETTLE = 15  # seconds, until the workers beside it have all joined


@dataclasses.dataclass
class Settings:
    build: pathlib.Path
    grpc_build: pathlib.Path
    repetitions: int
    idle_seconds: float
    timeout: float = 240

    def check(self):
        require((self.treadle, self.tensors, self.grpc), "bench")

    @property
    def python(self):
        return os.environ.get("TREADLE_PYTHON") or sys.executable

    @property
    def treadle(self):
        return self.build / "bin" / "treadle"

    @property
    def tensors(self):
        return self.build / "bench" / "treadle_bench_tensors"

    @property
    def grpc(self):
        return self.grpc_build / "grpc_bench"

    def job(self, workers, program, *arguments):
        """The command that starts a job of ours."""
        return [self.treadle, "run", "-n", workers, "--", program, *arguments]


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def ours(settings, cases, *options):
    command = settings.job(2, settings.tensors, "--cases", ",".join(cases), "--repetitions", settings.repetitions)
    return [run("ours", [*command, *options], settings.timeout)]


def ours_over_tcp(settings, cases):
    return ours(settings, cases, "--tcp")


def ours_without_warm_memory(settings, cases):
    return ours(settings, cases, "--no-warm-memory")


def ours_over_tls(settings, cases):
    return ours(settings, cases, "--tcp", "--tls")


def pytorch(settings, cases):
    command = [settings.python, PEERS / "torch_rpc.py", "--port", free_port(), "--cases", ",".join(cases)]
    command += ["--repetitions", settings.repetitions]
    pair = [[*command, "--rank", rank] for rank in (1, 0)]
    return run_together("PyTorch RPC", pair, settings.timeout)


def two_layers(start):
    """The columns of the table in the paper and their differences come from one loop, a case of the programs."""
    return lambda settings, _: start(settings, ["autograd_two_layers"])


def grpc(settings, cases):
    address = f"unix-abstract:treadle-bench-{os.getpid()}-{free_port()}"
    call = [settings.grpc, "--call", address, "--cases", ",".join(cases), "--repetitions", settings.repetitions]
    return run_together("gRPC", [[settings.grpc, "--serve", address], call], settings.timeout)


def members_of(cases):
    """Of cases like allreduce_4x10MB, which all have the same number of members."""
    return int(re.search(r"_(\d+)x", cases[0])[1])


def ours_collectives(settings, cases):
    program = settings.build / "bench" / "treadle_bench_collectives"
    command = settings.job(members_of(cases), program, "--cases", ",".join(cases))
    return [run("ours", [*command, "--repetitions", settings.repetitions], settings.timeout)]


def gloo(settings, cases):
    members = members_of(cases)
    command = [settings.python, PEERS / "torch_gloo.py", "--members", members, "--port", free_port()]
    command += ["--cases", ",".join(cases), "--repetitions", settings.repetitions]
    return run_together("gloo", [[*command, "--rank", rank] for rank in reversed(range(members))], settings.timeout)


def model_of(cases):
    """Of cases like ddp_exposed_cnn, which are all of one model and come from one run."""
    return cases[0].rsplit("_", 1)[1]


def ours_ddp(settings, cases):
    command = settings.job(2, settings.build / "bench" / "treadle_bench_ddp", "--model", model_of(cases))
    return [run("ours", [*command, "--repetitions", settings.repetitions], TRAINING_TIMEOUT)]


def ours_replicas(settings, cases):
    command = [settings.build / "bench" / "treadle_bench_replicas", "--model", model_of(cases)]
    return [run("ours", [*command, "--repetitions", settings.repetitions], TRAINING_TIMEOUT)]


def ours_summation(settings, cases):
    command = [settings.build / "bench" / "treadle_bench_summation", "--repetitions", settings.repetitions]
    return [run("ours", command, settings.timeout)]


def torch_ddp(settings, cases):
    command = [settings.python, PEERS / "torch_ddp.py", "--port", free_port(), "--model", model_of(cases)]
    command += ["--repetitions", settings.repetitions]
    return run_together("torch's DDP", [[*command, "--rank", rank] for rank in (1, 0)], TRAINING_TIMEOUT)


def idle_cpu(settings, _):
    """Both at the same time: neither disturbs the other, and what else the machine does meets both."""
    seconds = settings.idle_seconds
    least = [settings.build / "bench" / "treadle_bench_heartbeats", "--peers", IDLE_PEERS]
    least += ["--settle", IDLE_SETTLE, "--seconds", seconds]
    job = settings.job(1 + IDLE_PEERS, settings.build / "bench" / "treadle_bench_idle", "--seconds", seconds)
    return run_together("the idle job", [least, job], settings.timeout)


def resident_when_idle(settings, workers):
    command = settings.job(workers, settings.build / "bench" / "treadle_bench_idle")
    output = run(f"the idle job of {workers} workers", command, settings.timeout)
    return figures.lines_of(output)[0]["median"]


def idle_peer_bytes(settings, _):
    """From a job with one peer to a job with many."""
    more = resident_when_idle(settings, 1 + IDLE_PEERS) - resident_when_idle(settings, 2)
    return [json.dumps({"case": "idle_peer_bytes", "unit": "bytes", "median": more / (IDLE_PEERS - 1)})]


@dataclasses.dataclass(frozen=True)
class Launch:
    """One start of a program: who is measured, by which function above, in which cases, how often in a round."""

    who: str
    start: object
    cases: tuple
    times: int = 1


ALL_REDUCE_2, ALL_REDUCE_4 = (
    tuple(f"allreduce_{members}x{size}" for size in ("4KB", "1MB", "10MB", "100MB")) for members in (2, 4)
)

ALL_REDUCE_64 = ("allreduce_64x100floats", "allreduce_64x1MB")
COLLECTIVES_4 = tuple(f"{operation}_4x10MB" for operation in ("reducescatter", "allgather", "broadcast", "alltoall"))

DDP_TRANSFORMER, DDP_CNN = (
    tuple(f"ddp_{part}_{model}" for part in ("exposed", "step", "compute")) for model in ("transformer", "cnn")
)

TWO_LAYERS = tuple(
    f"autograd_{name}"
    for name in (
        *("norpc_fwd", "nograd_fwd", "grad_fwd", "norpc_bwd", "grad_bwd"),
        *("forward_overhead", "backward_overhead", "added_forward", "added_backward"),
    )
)

# In the order of a round. Cases that would disturb one another have a launch of their own.
LAUNCHES = [
    Launch("ours", ours, ("call_empty", "async_call")),
    Launch("pytorch", pytorch, ("call_empty", "async_call")),
    Launch("grpc", grpc, ("call_empty",)),
    Launch("ours", ours_over_tcp, ("call_empty_tcp", "identity_40MB_tcp")),
    Launch("ours", ours_over_tls, ("identity_40MB_tls",)),
    Launch("ours", ours, ("identity_4MB", "identity_40MB", "identity_400MB", "identity_40MB_shared")),
    Launch("ours", ours, ("concurrent_10x40MB",)),
    Launch("pytorch", pytorch, ("identity_4MB", "identity_40MB", "identity_400MB", "concurrent_10x40MB")),
    Launch("grpc", grpc, ("identity_40MB",)),
    Launch("ours", ours, ("rref_to_here_40MB",)),
    Launch("ours", ours, ("pointwise_10x40MB",)),
    Launch("pytorch", pytorch, ("pointwise_10x40MB",)),
    Launch("grpc", grpc, ("pointwise_10x40MB",)),
    Launch("ours", ours, ("train_large_activations", "train_large_activations_peak")),
    Launch("libtorch_allocator", ours_without_warm_memory, ("train_large_activations", "train_large_activations_peak")),
    Launch("ours", ours, ("identity_40MB_first",), times=2),
    Launch("ours", ours, ("small_behind_large",)),
    Launch("ours", ours, ("rss_after_10000",)),
    Launch("ours", two_layers(ours), TWO_LAYERS),
    Launch("pytorch", two_layers(pytorch), TWO_LAYERS),
    Launch("ours", ours, ("autograd_chain_100", "autograd_smart", "autograd_lineage_first", "autograd_lineage_next")),
    Launch("pytorch", pytorch, ("autograd_chain_100",)),
    Launch("ours", ours_collectives, ALL_REDUCE_2),
    Launch("gloo", gloo, ALL_REDUCE_2),
    Launch("ours", ours_collectives, ALL_REDUCE_4),
    Launch("gloo", gloo, ALL_REDUCE_4),
    Launch("ours", ours_collectives, ALL_REDUCE_64),
    Launch("ours", ours_collectives, COLLECTIVES_4),
    Launch("gloo", gloo, COLLECTIVES_4),
    Launch("ours", ours_ddp, DDP_TRANSFORMER),
    Launch("torch_ddp", torch_ddp, DDP_TRANSFORMER),
    Launch("ours", ours_ddp, DDP_CNN),
    Launch("torch_ddp", torch_ddp, DDP_CNN),
    Launch("ours", ours_replicas, ("replicas_step_transformer",)),
    Launch("ours", ours_replicas, ("replicas_step_cnn",)),
    Launch("ours", ours_summation, ("summation_float", "summation_half", "summation_bfloat16")),
    Launch("ours", idle_cpu, ("idle_cpu",)),
    Launch("ours", idle_peer_bytes, ("idle_peer_bytes",)),
]

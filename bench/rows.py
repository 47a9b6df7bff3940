"""The rows of the benchmark: what is compared with what, and the bar that ours should keep.

A ratio is ours / peer, in time or bytes: lower is better in every row.
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class Row:
    case: str
    unit: str
    peer: str
    bar: float | None  # of the ratio; None: there is none
    above_noise: bool = False  # a difference, which says something only where the interval of the peer's is above 0


ROWS = [
    Row("call_empty", "us", "raw", 1.5),
    Row("call_empty", "us", "pytorch", 0.067),
    Row("call_empty", "us", "grpc", 0.25),
    Row("call_empty_tcp", "us", "raw_tcp", 1.5),
    Row("async_call", "us", "raw", 0.0625),  # 1.5 us beside a round trip of 24
    Row("async_call", "us", "pytorch", 0.025),
    Row("identity_4MB", "us", "memcpy", 1.3),
    Row("identity_4MB", "us", "pytorch", 0.2),
    Row("identity_40MB", "us", "memcpy", 1.1),
    Row("identity_40MB", "us", "pytorch", 0.2),
    Row("identity_40MB", "us", "grpc", 0.05),
    Row("identity_400MB", "us", "memcpy", 1.1),
    Row("identity_400MB", "us", "pytorch", 0.2),
    Row("identity_40MB_first", "us", "memcpy", 2.5),
    Row("identity_40MB_shared", "us", "call_empty", 2.0),
    Row("identity_40MB_tcp", "us", "naive_tcp", 0.9),
    Row("identity_40MB_tls", "us", "memcpy", None),
    Row("concurrent_10x40MB", "us", "pytorch", 0.2),
    Row("rref_to_here_40MB", "us", "identity_40MB", 1.15),
    Row("pointwise_10x40MB", "us", "pytorch", 0.15),
    Row("pointwise_10x40MB", "us", "grpc", 0.25),
    Row("train_large_activations", "us", "libtorch_allocator", 0.8),
    Row("train_large_activations_peak", "bytes", "libtorch_allocator", 1.2),
    Row("fetch_4MB_network", "us", "pytorch", 0.6),
    Row("fetch_40MB_network", "us", "pytorch", 0.6),
    Row("identity_10x40MB_network", "us", "pytorch", 0.6),
    Row("allreduce_2x4KB", "us", "gloo", 0.5),
    Row("allreduce_2x1MB", "us", "gloo", 0.5),
    Row("allreduce_2x10MB", "us", "gloo", 0.5),
    Row("allreduce_2x100MB", "us", "gloo", 0.5),
    Row("allreduce_4x4KB", "us", "gloo", 0.5),
    Row("allreduce_4x1MB", "us", "gloo", 0.5),
    Row("allreduce_4x10MB", "us", "gloo", 0.5),
    Row("allreduce_4x100MB", "us", "gloo", 0.5),
    Row("allreduce_64x100floats", "us", "8ms", 1.0),
    Row("allreduce_64x1MB", "us", "allreduce_4x1MB", 63),  # 21 times the bytes are moved, each in three times the time
    Row("reducescatter_4x10MB", "us", "gloo", 0.6),
    Row("allgather_4x10MB", "us", "gloo", 0.6),
    Row("broadcast_4x10MB", "us", "gloo", 0.6),
    Row("alltoall_4x10MB", "us", "gloo", 0.6),
    Row("ddp_exposed_transformer", "us", "torch_ddp", 0.5),
    Row("ddp_exposed_cnn", "us", "torch_ddp", 0.5),
    Row("ddp_step_transformer", "us", "torch_ddp", 1.0),
    Row("ddp_step_cnn", "us", "torch_ddp", 1.0),
    Row("ddp_compute_transformer", "us", "torch_ddp", None),  # what the four above are made of, measured with them
    Row("ddp_compute_cnn", "us", "torch_ddp", None),
    Row("replicas_step_transformer", "us", "libtorch", 1.0),
    Row("replicas_step_cnn", "us", "libtorch", 1.0),
    Row("ddp_200mbit_transformer", "us", "network_or_compute", 1.15),
    Row("ddp_200mbit_transformer", "us", "torch_ddp", 1.0),
    Row("ddp_200mbit_cnn", "us", "network_or_compute", 1.15),
    Row("ddp_200mbit_cnn", "us", "torch_ddp", 1.0),
    Row("char_gpt_servers", "us", "network_or_compute", 1.15),
    Row("char_gpt_servers_batch_8", "us", "network_or_compute", 1.15),
    Row("summation_float", "us", "memcpy", 1.67),
    Row("summation_half", "us", "summation_float", 1.25),
    Row("summation_bfloat16", "us", "summation_float", 1.25),
    Row("summation_float", "us", "sgd", None),
    Row("summation_float", "us", "momentum", None),
    Row("summation_float", "us", "rmsprop", None),
    Row("summation_float", "us", "adam", 0.476),  # 2.1 times the bytes of a server that makes the step
    Row("priority_first_layer", "us", "first_come", 0.5),
    Row("async_rate", "us", "each_alone", 1.111),  # 90% of the steps
    Row("async_rate", "us", "in_step", None),
    Row("small_behind_large", "us", "quiet", 10),
    Row("rss_after_10000", "bytes", "rss_after_1000", 1.05),
    Row("autograd_forward_overhead", "us", "pytorch", 0.33),
    Row("autograd_backward_overhead", "us", "pytorch", 0.33),
    Row("autograd_added_forward", "us", "pytorch", 0.33, above_noise=True),
    Row("autograd_added_backward", "us", "pytorch", None, above_noise=True),
    Row("autograd_norpc_fwd", "us", "pytorch", None),  # what the four above are made of, measured with them
    Row("autograd_nograd_fwd", "us", "pytorch", None),
    Row("autograd_grad_fwd", "us", "pytorch", None),
    Row("autograd_norpc_bwd", "us", "pytorch", None),
    Row("autograd_grad_bwd", "us", "pytorch", None),
    Row("autograd_chain_100", "us", "pytorch", 0.33),
    Row("autograd_smart", "us", "fast", 1.1),
    Row("autograd_lineage_first", "us", "fast", None),
    Row("autograd_lineage_next", "us", "fast", None),
    Row("idle_cpu", "us/s", "heartbeats_only", 1.0),
    Row("idle_peer_bytes", "bytes", "64KiB", 1.0),
]

# Which figure of a run counts; the median otherwise.
STATISTICS = {"small_behind_large": "p99"}

# Whose interval of the median is kept: differences of two larger times.
INTERVALS = [
    *("autograd_forward_overhead", "autograd_backward_overhead"),
    *("autograd_added_forward", "autograd_added_backward"),
]

# What is compared with a number instead of a measurement.
CONSTANTS = {"64KiB": 64 * 1024, "8ms": 8000}

CASES = list(dict.fromkeys(row.case for row in ROWS))


def statistic_of(case):
    return STATISTICS.get(case, "median")

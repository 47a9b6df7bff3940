"""From the values of all rounds to results.json and to the table in docs/benchmarks.md."""

import json
import statistics

import rows

LIBRARIES = {  # the peers that are not limits of the machine, in words
    "pytorch": "PyTorch RPC",
    "grpc": "gRPC",
    "gloo": "torch.distributed over gloo",
    "torch_ddp": "torch's DDP over gloo",
}
SUMMED_BYTES = 64_000_000  # of the summation rows
BEGIN, END = "<!-- bench: {} -->", "<!-- bench: end of {} -->"


def result_of(row, figures):
    """One object of results.json; None while ours or the peer has no value."""
    ours = figures.of(row.case, "ours")
    peer = [rows.CONSTANTS[row.peer]] if row.peer in rows.CONSTANTS else figures.of(row.case, row.peer)
    peer = peer or figures.of(row.peer, "ours")  # it is another case
    if not ours or not peer:
        return None
    median, of_peer = statistics.median(ours), statistics.median(peer)
    ends = {"interval": figures.interval(row.case, "ours"), "peer_interval": figures.interval(row.case, row.peer)}
    return {
        "case": row.case,
        "unit": row.unit,
        "ours": median,
        "peer": of_peer,
        "peer_name": row.peer,
        "ratio": median / of_peer if of_peer else None,
        "spread": (max(ours) - min(ours)) / abs(median) if median else None,
        **{name: interval for name, interval in ends.items() if interval},
    }


def says_something(row, result):
    """Not where the peer's difference may as well be 0."""
    return not row.above_noise or result["peer_interval"][0] > 0


def has_bar(row, result):
    return row.bar is not None and says_something(row, result)


def within_bar(row, result):
    # Not the ratio: it says nothing where the peer's value, a difference of two times, is below 0.
    return not has_bar(row, result) or result["ours"] <= row.bar * result["peer"]


def shown(value, unit):
    """With three digits and a unit to read."""
    steps = {"us": [("s", 1e6), ("ms", 1e3), ("µs", 1)], "bytes": [("MiB", 2**20), ("KiB", 2**10), ("B", 1)]}
    for name, size in steps.get(unit, [(unit.replace("us", "µs"), 1)]):
        if abs(value) >= size or size == 1:
            return f"{digits(value / size)} {name}"
    raise AssertionError(unit)


def digits(value):
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def or_dash(value, show):
    return "-" if value is None else show(value)


def bar_of(row):
    return "none" if row.bar is None else f"{row.bar:g}"


def kept_of(row, result):
    if not has_bar(row, result):
        return "-"
    return "yes" if within_bar(row, result) else "no"


def table(pairs):
    """Of (row, result)."""
    lines = [
        "| case | ours | compared with | it takes | ratio | bar | kept | spread |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row, result in pairs:
        lines.append(
            f"| {row.case} | {shown(result['ours'], row.unit)} | {row.peer} | "
            f"{shown(result['peer'], row.unit)} | {or_dash(result['ratio'], digits)} | {bar_of(row)} | "
            f"{kept_of(row, result)} | {or_dash(result['spread'], '{:.0%}'.format)} |"
        )
    return "\n".join(lines)


def standing(pairs):
    """Who is ahead, in words."""
    parts = []
    for name, words in LIBRARIES.items():
        found = [(row, result) for row, result in pairs if row.peer == name and says_something(row, result)]
        ahead = [result["ours"] < result["peer"] for _, result in found]
        if ahead:
            parts.append(f"less than {words} in {sum(ahead)} of {len(ahead)} rows")
    barred = [(row, result) for row, result in pairs if has_bar(row, result)]
    kept = sum(within_bar(row, result) for row, result in barred)
    takes = f"Treadle takes {' and '.join(parts)}; it keeps" if parts else "Treadle keeps"
    return f"{takes} {kept} of {len(barred)} bars."


def machine_sentence(machine, date):
    return (
        f"Measured on {date[:10]}: {machine['processor']}, {machine['cores']} cores, {machine['memory_GiB']} GiB, "
        f"{machine['system']}, load {machine['load_before']:.1f} at the start."
    )


def memory_note(figures):
    """The most that the ten at once took."""
    peaks = [figures.of("concurrent_10x40MB", f"peak_of_{who}") for who in ("caller", "callee")]
    if not all(peaks):
        return ""
    caller, callee = (shown(max(peak), "bytes") for peak in peaks)
    return (
        f"\n\nThe most memory resident while ten tensors of 40 MB were under way at once: {caller} at the caller and "
        f"{callee} at the callee, shared pages counted at both; arguments and results together are 800 MiB."
    )


def added_by_autograd(figures, direction):
    """In words, with the intervals; empty while it was not measured."""
    case, parts = f"autograd_added_{direction}", []
    for who in ("ours", "pytorch"):
        interval = figures.interval(case, who)
        if interval:
            low, high = (shown(end, "us") for end in interval)
            parts.append(f"{shown(statistics.median(figures.of(case, who)), 'us')} ({who}; interval {low} to {high})")
    return f"To the {direction} pass autograd adds {', '.join(parts)}." if parts else ""


def autograd_note(figures):
    """How much of the forward overhead is the round trip, what autograd adds to that, and SMART mode to messages."""
    parts = []
    trips = []
    for who in ("ours", "pytorch"):
        without, remote = (figures.of(f"autograd_{name}_fwd", who) for name in ("norpc", "nograd"))
        if without and remote:
            trips.append(f"{shown(statistics.median(remote) - statistics.median(without), 'us')} ({who})")
    if trips:
        parts.append("Of `autograd_forward_overhead` the round trip itself (nograd-fwd - norpc-fwd) is " + ", ".join(trips) + ".")
    parts += filter(None, (added_by_autograd(figures, direction) for direction in ("forward", "backward")))
    lineage = figures.of("autograd_smart", "lineage_per_message")
    if lineage:
        parts.append(
            f"SMART mode added {statistics.median(lineage):.0f} bytes of lineage to a message of `autograd_smart`, "
            "in which it depends on up to 200 others."
        )
    return "\n\n" + " ".join(parts) if parts else ""


def ddp_note(figures):
    """How far the rounds' medians of the exposed time lie apart, on both sides, and how much of a step it is."""
    parts = []
    for model in ("transformer", "cnn"):
        for who in ("ours", "torch_ddp"):
            exposed, step = (figures.of(f"ddp_{part}_{model}", who) for part in ("exposed", "step"))
            if exposed and step:
                share = statistics.median(exposed) / statistics.median(step)
                parts.append(
                    f"{model}, {who}: {shown(min(exposed), 'us')} to {shown(max(exposed), 'us')}, {share:.1%} of the step"
                )
    return f"\n\nThe exposed time over the rounds: {'; '.join(parts)}." if parts else ""


def summation_note(figures):
    """What one core of a server does, as figure 9a of Jiang et al., OSDI 2020, shows it."""
    times = {"summation": figures.of("summation_float", "ours")}
    times |= {step: figures.of("summation_float", step) for step in ("sgd", "momentum", "rmsprop", "adam")}
    if not all(times.values()):
        return ""
    rates = {name: SUMMED_BYTES / 1e3 / statistics.median(of) for name, of in times.items()}
    parts = ", ".join(f"{name} {digits(rate)}" for name, rate in rates.items())
    return (
        f"\n\nOf a gradient of float32 one core takes, in GB/s: {parts}; "
        f"summation is {rates['summation'] / rates['adam']:.2f} times as fast as Adam."
    )


def write_json(path, value):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def replace_part(path, name, text):
    """Puts `text` between the two comments of that name; what people wrote around them stays."""
    document = path.read_text(encoding="utf-8")
    begin, end = BEGIN.format(name), END.format(name)
    before, found, rest = document.partition(begin)
    _, ended, after = rest.partition(end)
    if not found or not ended:
        raise ValueError(f"{path} lacks the comments '{begin}' and '{end}'")
    path.write_text(f"{before}{begin}\n{text}\n{end}{after}", encoding="utf-8")

"""Steps/s of the hybrid model: examples/hybrid_digits and the same job on PyTorch RPC, in alternation.

    python bench/hybrid.py [--runs 5] [--build build/release]

Both train a bag of width 16 and a linear layer over four processes: batches of 32, 10 epochs, SGD 0.05, one
intra-op thread per process. A run's figure is the trainers' mean of steps per second, the ratio is that of the
medians. Writes all figures to build/bench/hybrid.json and ends with

    bench-hybrid: ratio R (ours N, pytorch N steps/s, RUNS runs)

TREADLE_PYTHON in the environment names the Python that has torch; else it is the one that runs this file.
"""

import argparse
import datetime
import json
import os
import pathlib
import re
import statistics
import sys
import tempfile
import time

import processes
from machine import describe_machine

ROOT = pathlib.Path(__file__).resolve().parents[1]
LINES = {
    "ours": re.compile(
        r"hybrid_digits: test accuracy ([0-9.]+), single process [0-9.]+, ([0-9.]+) steps/s per trainer,"
    ),
    "pytorch": re.compile(r"torch_hybrid_digits: test accuracy ([0-9.]+), ([0-9.]+) steps/s per trainer,"),
}


def fail(message):
    sys.exit(f"bench-hybrid: {message}")


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=5, help="runs of each, in alternation")
    parser.add_argument(
        "--seed", type=int, default=0, help="of the data's split and the first weights, for both"
    )
    parser.add_argument(
        "--build", type=pathlib.Path, default=ROOT / "build" / "release", help="folder of the build"
    )
    parser.add_argument("--at-least", type=float, default=0, help="fail when the ratio is below this")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for one run")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "bench" / "hybrid.json")
    options = parser.parse_args()
    if options.runs < 1:
        parser.error("--runs must be at least 1")
    return options


def commands(options, run_folder):
    """The command line of each job."""
    binaries = options.build.resolve() / "bin"
    for program in ("treadle", "hybrid_digits"):
        if not os.access(binaries / program, os.X_OK):
            fail(f"{binaries / program} is not there; run `make release`, or name another build with --build")
    shared = ["--seed", str(options.seed)]
    python = os.environ.get("TREADLE_PYTHON") or sys.executable
    return {
        "ours": [
            binaries / "treadle",
            "run",
            "-n",
            "4",
            "--",
            binaries / "hybrid_digits",
            "--epochs",
            "10",
            "--batch",
            "32",
            "--lr",
            "0.05",
            "--run-folder",
            run_folder,
            *shared,
        ],
        "pytorch": [
            python,
            ROOT / "bench" / "peers" / "torch_hybrid_digits.py",
            "--epochs",
            "10",
            "--timeout",
            str(options.timeout),
            *shared,
        ],
    }


def run(name, command, timeout):
    """One run. Returns (steps/s, accuracy)."""
    try:
        # A little longer than the job's own limit: its own message is the better one.
        output = processes.run(f"the run of {name}", command, timeout + 20)
    except processes.Failed as failure:
        fail(failure)
    found = LINES[name].search(output)
    if not found:
        fail(f"the run of {name} did not tell its figures; its last lines:\n{processes.tail(output)}")
    return float(found[2]), float(found[1])


def run_all(options):
    """Alternates, so that what else the machine does meets both. Returns name -> [(steps/s, accuracy)]."""
    results = {name: [] for name in LINES}
    for number in range(options.runs):
        with tempfile.TemporaryDirectory(prefix="bench-hybrid-") as folder:
            for name, command in commands(options, os.path.join(folder, "run")).items():
                begin = time.monotonic()
                rate, accuracy = run(name, command, options.timeout)
                results[name].append((rate, accuracy))
                print(
                    f"run {number + 1}/{options.runs}  {name:<8} {rate:8.1f} steps/s  "
                    f"accuracy {accuracy:.3f}  "
                    f"{time.monotonic() - begin:5.1f} s in all",
                    flush=True,
                )
    return results


def summarize(runs):
    rates = [rate for rate, _ in runs]
    return {
        "median": statistics.median(rates),
        "least": min(rates),
        "most": max(rates),
        "steps_per_s": rates,
        "accuracies": [accuracy for _, accuracy in runs],
    }


def print_table(machine, summaries):
    print(
        f"\n{machine['processor']}, {machine['cores']} cores, {machine['system']}, "
        f"load {machine['load_before']:.1f} at the start"
    )
    print(f"{'steps/s per trainer':<20} {'median':>9} {'least':>9} {'most':>9} {'spread':>7} {'accuracy':>9}")
    for name, summary in summaries.items():
        spread = (summary["most"] - summary["least"]) / summary["median"]
        print(
            f"{name:<20} {summary['median']:9.1f} {summary['least']:9.1f} {summary['most']:9.1f} "
            f"{spread:7.0%} "
            f"{statistics.median(summary['accuracies']):9.3f}"
        )


def main():
    options = parse_arguments()
    machine = describe_machine()
    summaries = {name: summarize(runs) for name, runs in run_all(options).items()}
    ratio = summaries["ours"]["median"] / summaries["pytorch"]["median"]
    print_table(machine, summaries)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    options.out.write_text(
        json.dumps(
            {
                "date": date,
                "machine": machine,
                "runs": options.runs,
                "seed": options.seed,
                "ratio": ratio,
                **summaries,
            },
            indent=2,
        )
        + "\n",
        encoding="utf-8",
    )
    print(
        f"bench-hybrid: ratio {ratio:.2f} (ours {summaries['ours']['median']:.0f}, "
        f"pytorch {summaries['pytorch']['median']:.0f} steps/s, {options.runs} runs)"
    )
    return 0 if ratio >= options.at_least else 1


if __name__ == "__main__":
    sys.exit(main())

"""The field's first experiment, without bars: ours, PyTorch RPC and gRPC side by side.

    python bench/seed.py [--full] [--network loopback|namespaces]

Ten calls at once of a function that returns its tensor and of one with 200 pointwise operations, and a tensor that the
callee fetches by reference; 4, 40 and 400 MB, two processes, and the lines that a user writes for it. With namespaces
the two processes see each other through a pair of veth interfaces alone (needs root). Writes build/bench/seed.json.
"""

import argparse
import contextlib
import pathlib
import re
import sys

import experiment
import namespaces
import programs
import report
from figures import lines_of
from processes import Failed, end_orderly
from programs import PEERS, ROOT

SIZES = (4, 40, 400)
CASES = {
    "identity": "10 calls at once, identity",
    "pointwise": "10 calls at once, 200 pointwise operations",
    "fetch": "fetch by reference",
}
SOURCES = {
    "ours": [ROOT / "bench" / "ours" / "seed.cc"],
    "pytorch": [PEERS / "torch_seed.py"],
    "grpc": [PEERS / "grpc" / "seed.cc", PEERS / "grpc" / "tensor.proto"],
}
TIMEOUT, TIMEOUT_FULL = 400, 3000


def arguments(full):
    return ["--sizes", ",".join(map(str, SIZES)), "--pointwise-up-to", 400 if full else 40]


SYSTEMS = {"ours": experiment.ours, "pytorch": experiment.pytorch, "grpc": experiment.grpc}


def lines_of_code(paths):
    """Between the marks `[` and `]`, or in all of a .proto: neither blank, nor a comment, nor a brace alone."""
    count = 0
    for path in paths:
        counting = path.suffix == ".proto"
        for line in path.read_text(encoding="utf-8").splitlines():
            text = line.strip()
            if re.fullmatch(r"(//|#) [\[\]]", text):
                counting = text.endswith("[")
            elif counting and text.strip("{}();") and not text.startswith(("//", "#")):
                count += 1
    return count


def measure(settings, network, full, failures):
    """By system: its figures by case, and its lines of code. A sentence stands where a case could not be measured."""
    results = {}
    places = namespaces.two_namespaces() if network == "namespaces" else contextlib.nullcontext(namespaces.LOOPBACK)
    with places as both:
        for name, start in SYSTEMS.items():
            print(f"seed experiment, {network}: {name}", flush=True)
            try:
                lines = lines_of("\n".join(start(settings, both, arguments(full), TIMEOUT_FULL if full else TIMEOUT)))
            except Failed as failure:
                failures["seed", name] = str(failure)
                print(f"bench: seed experiment: {failure}", flush=True)
                lines = []
            cases = {line["case"]: line.get("error", line.get("median")) for line in lines}
            results[name] = {"lines": lines_of_code(SOURCES[name]), "us": cases}
    return results


def cell(result, case, size, full):
    value = result["us"].get(f"{case}_{size}MB")
    if isinstance(value, str):
        return f"no: {value}"
    if value is None:
        return "only with `--full`"
    return report.shown(value, "us")


def standing(results):
    """Who is ahead, in words."""
    sentences = []
    for name, words in (("pytorch", "PyTorch RPC"), ("grpc", "gRPC")):
        ours, theirs = results["ours"]["us"], results[name]["us"]
        both = [case for case in ours if all(isinstance(of.get(case), float) for of in (ours, theirs))]
        behind = [case for case in both if ours[case] > theirs[case]]
        if both:
            named = f", more for {', '.join(case.replace('_', ', ') for case in behind)}" if behind else ""
            sentences.append(f"less than {words} in {len(both) - len(behind)} of {len(both)}{named}")
    return f"Treadle takes {'; '.join(sentences)}." if sentences else ""


def table(results, full, network):
    lines = ["| | size | ours | pytorch | grpc |", "|---|---|---|---|---|"]
    for case, words in CASES.items():
        for size in SIZES:
            cells = [cell(results[name], case, size, full) for name in SYSTEMS]
            lines.append(f"| {words} | {size} MB | {' | '.join(cells)} |")
    if network == "loopback":
        counts = [str(results[name]["lines"]) for name in SYSTEMS]
        lines.append(f"| lines of user code | | {' | '.join(counts)} |")
    return "\n".join([*lines, "", standing(results)])


HEADINGS = {
    "loopback": "Between two processes:",
    "namespaces": "Between two network namespaces (ours over TCP with lanes, in clear text):",
}


def measure_and_report(settings, out, failures, networks, full=False):
    """Returns the tables."""
    results, texts = {}, []
    for network in networks:
        results[network] = measure(settings, network, full, failures)
        texts.append(f"{HEADINGS[network]}\n\n{table(results[network], full, network)}")
    report.write_json(out / "seed.json", results)
    text = "\n\n".join(texts)
    print(f"\n{text}\n", flush=True)
    return text


def networks_here():
    """Namespaces need root."""
    return ("loopback", "namespaces") if namespaces.available() else ("loopback",)


def main():
    end_orderly()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--full", action="store_true", help="200 operations at 400 MB too: minutes")
    parser.add_argument("--network", choices=tuple(HEADINGS), help="this one alone")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--grpc-build", type=pathlib.Path, default=ROOT / "build" / "bench-grpc")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "bench")
    options = parser.parse_args()
    settings = programs.Settings(options.build.resolve(), options.grpc_build.resolve(), 0, 0)
    failures = {}
    try:
        settings.check()
        networks = (options.network,) if options.network else networks_here()
        measure_and_report(settings, options.out, failures, networks, options.full)
    except Failed as failure:
        sys.exit(f"bench: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""Ours, its peers and what the machine can do at best, in one run and in turn.

    python bench/run.py [--rounds 3] [--only CASE,...] [--quick] [--strict]

Each round starts each program once (ours, PyTorch RPC, torch's DDP, gRPC; ours measures raw limits beside its own
cases), and a row's figure is the median over the rounds. Writes build/bench/results.json, one object for each row, with
all rounds in build/bench/rounds.json; a complete run also writes the tables in docs/benchmarks.md. Ends with

    bench: N rows, N within their bars

Exit code 0 when all rows were measured, whether or not they keep their bars; --strict asks for that too. The field's
first experiment (bench/seed.py) is part of a complete run. TREADLE_PYTHON in the environment names the Python that
has torch; else it is the one that runs this file.
"""

import argparse
import datetime
import pathlib
import sys
import time

import agreement
import asynchronous
import experiment
import namespaces
import priority
import programs
import report
import rows
import seed
import servers
import shaped
from figures import Figures, lines_of
from machine import describe_machine
from processes import Failed, end_orderly
from programs import ROOT

DOCUMENT = ROOT / "docs" / "benchmarks.md"
QUICK = {"repetitions": 6, "idle_seconds": 5, "rounds": 1}
FULL = {"repetitions": 20, "idle_seconds": 20, "rounds": 3}
PARTS = (programs, experiment, shaped, priority, servers, asynchronous)
LAUNCHES = [launch for part in PARTS for launch in part.LAUNCHES]


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, help=f"rounds of all programs ({FULL['rounds']})")
    parser.add_argument("--repetitions", type=int, help=f"of 40 MB in each round ({FULL['repetitions']})")
    parser.add_argument("--only", metavar="CASE,...", help=f"of: {', '.join(rows.CASES)}")
    parser.add_argument("--quick", action="store_true", help="one short round, to see that all works")
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a row misses its bar")
    parser.add_argument("--no-seed", action="store_true", help="leave out the field's first experiment")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build" / "release")
    parser.add_argument("--grpc-build", type=pathlib.Path, default=ROOT / "build" / "bench-grpc")
    parser.add_argument("--out", type=pathlib.Path, default=ROOT / "build" / "bench")
    options = parser.parse_args()
    options.cases = options.only.split(",") if options.only else rows.CASES
    unknown = [case for case in options.cases if case not in rows.CASES]
    if unknown:
        parser.error(f"there is no case {unknown[0]}; there are: {', '.join(rows.CASES)}")
    for name, value in (QUICK if options.quick else FULL).items():
        if getattr(options, name, None) is None:
            setattr(options, name, value)
    if options.rounds < 1 or options.repetitions < 1:
        parser.error("--rounds and --repetitions must be at least 1")
    options.complete = not options.only and not options.quick
    if not namespaces.available():
        print("bench: rows between two network namespaces need root and the command `ip`; they are left out")
        between = {*experiment.NETWORK_CASES.values(), *shaped.CASES, priority.CASE, *servers.BATCHES, asynchronous.CASE}
        options.cases = [case for case in options.cases if case not in between]
        if not options.cases:
            parser.error("nothing is left to measure")
    return options


def settings_of(options):
    return programs.Settings(
        options.build.resolve(), options.grpc_build.resolve(), options.repetitions, options.idle_seconds
    )


def take(figures, who, outputs):
    """Adds what one launch printed."""
    for line in lines_of("\n".join(outputs)):
        if "error" in line:
            raise Failed(f"{who} could not measure {line['case']}: {line['error']}")
        case, of = line["case"], line.get("of", who)
        figures.add(case, of, line[rows.statistic_of(case)])
        if case in rows.INTERVALS:
            figures.add_interval(case, of, line)


def output_of(launch, settings, cases):
    """What it printed. It may be started twice: the ranks of PyTorch RPC miss each other at times."""
    try:
        return launch.start(settings, cases)
    except Failed as failure:
        print(f"bench: {launch.who} is started again: {failure}", flush=True)
        return launch.start(settings, cases)


def measure(options, settings, figures, failures):
    for number in range(options.rounds):
        for launch in LAUNCHES:
            cases = [case for case in launch.cases if case in options.cases]
            if not cases or (launch.who, cases[0]) in failures:
                continue
            begin = time.monotonic()
            try:
                for _ in range(launch.times):
                    take(figures, launch.who, output_of(launch, settings, cases))
            except Failed as failure:
                failures[launch.who, cases[0]] = str(failure)
                print(f"bench: {launch.who} in {', '.join(cases)}: {failure}", flush=True)
            seconds = time.monotonic() - begin
            names = ", ".join(cases)
            print(f"round {number + 1} of {options.rounds}  {launch.who:<8} {names}  {seconds:.1f} s", flush=True)


def write_reports(options, machine, figures, pairs):
    date = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    report.write_json(options.out / "results.json", [result for _, result in pairs])
    values = [{"case": case, "of": of, "values": found} for (case, of), found in figures.values.items()]
    report.write_json(options.out / "rounds.json", {"date": date, "machine": machine, "values": values})
    parts = [report.machine_sentence(machine, date), report.table(pairs), report.standing(pairs)]
    text = "\n\n".join(parts) + report.memory_note(figures) + report.autograd_note(figures)
    text += report.ddp_note(figures) + report.summation_note(figures)
    print(f"\n{text}\n", flush=True)
    return text


def write_documents(text, experiment, failures):
    if failures:
        print("bench: docs/benchmarks.md was left as it is, as something could not be measured")
        return
    report.replace_part(DOCUMENT, "rows", text)
    if experiment:
        report.replace_part(DOCUMENT, "first experiment", experiment)


def main():
    end_orderly()
    options = parse_arguments()
    settings, figures, failures, machine = settings_of(options), Figures(), {}, describe_machine()
    try:
        settings.check()
    except Failed as failure:
        sys.exit(f"bench: {failure}")
    measure(options, settings, figures, failures)
    for (peer, case), sentence in agreement.disagreements(figures).items():
        failures[peer, case] = sentence
        print(f"bench: {case}: {sentence}", flush=True)
    wanted = [row for row in rows.ROWS if row.case in options.cases]
    pairs = [(row, result) for row in wanted if (result := report.result_of(row, figures))]
    text = write_reports(options, machine, figures, pairs)
    if options.complete:
        experiment = None
        if not options.no_seed:
            experiment = seed.measure_and_report(settings, options.out, failures, seed.networks_here())
        write_documents(text, experiment, failures)
    kept = sum(report.within_bar(row, result) for row, result in pairs)
    for row in wanted:
        if row not in [measured for measured, _ in pairs]:
            print(f"bench: {row.case} against {row.peer} was not measured")
    print(f"bench: {len(pairs)} rows, {kept} within their bars")
    return 1 if failures or len(pairs) < len(wanted) or (options.strict and kept < len(pairs)) else 0


if __name__ == "__main__":
    sys.exit(main())

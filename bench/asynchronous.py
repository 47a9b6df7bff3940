"""Steps per second of four workers that train asynchronously, one of them with a quarter of the processor time of the others,
beside the rates that they reach when each trains alone, and beside training where nobody is ahead of the slowest one.
"""

import json
import re

import programs
from cgroups import Quotas
from processes import Failed, run

CASE = "async_rate"
PARTS = (0.36, 0.36, 0.36, 0.09)  # of a core, so that two cores have room for the servers too
SERVERS = 2
SECONDS, TIMEOUT = 6, 60

# Takes the group of its rank: the folder's prefix, the number of the first rank's group, and the program.
WRAPPER = 'echo $$ > "$1$((TREADLE_RANK + $2))/cgroup.procs" && shift 2 && exec "$@"'


def rate_of(settings, quotas, numbers, *more):
    """Steps per second of the workers with these numbers, which follow each other, all together."""
    program = [settings.build / "bench" / "treadle_bench_asynchronous", "--seconds", SECONDS, *more]
    command = [settings.treadle, "run", "-n", len(numbers), "--servers", SERVERS, "--", "sh", "-c", WRAPPER, "sh",
               quotas.prefix, numbers[0], *program]
    rates = [float(rate) for rate in re.findall(r"\brate (\S+)", run("asynchronous training", command, TIMEOUT))]
    if len(rates) != len(numbers):
        raise Failed(f"{len(rates)} of {len(numbers)} workers reported a rate")
    return sum(rates)


def launch(settings, _cases):
    everyone = range(len(PARTS))
    with Quotas(PARTS) as quotas:
        together = rate_of(settings, quotas, everyone)
        alone = sum(rate_of(settings, quotas, [number]) for number in everyone)
        in_step = rate_of(settings, quotas, everyone, "--staleness", 0)
    line = {"case": CASE, "unit": "us"}
    return [json.dumps({**line, "median": 1e6 / together}), json.dumps({**line, "of": "each_alone", "median": 1e6 / alone}),
            json.dumps({**line, "of": "in_step", "median": 1e6 / in_step})]


LAUNCHES = [programs.Launch("ours", launch, (CASE,))]

"""What the measuring programs print: one line of JSON for each case.

    {"case", "of", "unit", "median", "p10", "p90", "p99", "count"}     "of" only for what ours is compared with
    {"case", "error"}                                                  where it could not be measured

Ours and PyTorch's have "low" and "high" too, between which lies the median of all that could be measured, with 95%.
"""

import json
import re

PREFIX = re.compile(r"^(\[\d+\] )?(?=\{\"case\")")  # the rank that `treadle run` puts in front


def lines_of(output):
    found = []
    for line in output.splitlines():
        if PREFIX.match(line):
            found.append(json.loads(PREFIX.sub("", line)))
    return found


class Figures:
    """The values of all rounds: by case and by whom they are of, ours or a peer."""

    def __init__(self):
        self.values = {}

    def add(self, case, of, value):
        self.values.setdefault((case, of), []).append(value)

    def of(self, case, of):
        return self.values.get((case, of), [])

    def add_interval(self, case, of, line):
        for end in ("low", "high"):
            self.add(case, f"{end}_of_{of}", line[end])

    def interval(self, case, of):
        """From the least to the most that lies within the interval of any round; None where there are none."""
        lows, highs = self.of(case, f"low_of_{of}"), self.of(case, f"high_of_{of}")
        return [min(lows), max(highs)] if lows else None

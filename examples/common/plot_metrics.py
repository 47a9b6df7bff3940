"""Draws a run's metrics.jsonl: a panel for each measure in it, a line for each trainer or training, over the steps if the file has
them, else over time.

    python plot_metrics.py METRICS.jsonl PLOT.png TITLE

Ends with one sentence and status 1 when it cannot.
"""

import dataclasses
import json
import math
import pathlib
import sys

try:
    import matplotlib

    matplotlib.use("Agg")  # draws into files, needs no display
    from matplotlib import pyplot
except ImportError as error:
    sys.exit(
        f"{sys.executable} has no matplotlib ({error}); install it there, or use another Python"
    )

COLOURS = ["#3b6fb6", "#d1702c", "#3a8f5c", "#8b5fbf", "#b0413e", "#6b6b6b"]
MARKERS = "osD^vP"
# The columns that name a line, and those along which it runs: a file has one of each, the first that is there.
NAMES = ("trainer", "training")
PLACES = {"step": "steps", "seconds": "time since training began [s]"}


@dataclasses.dataclass(frozen=True)
class Measure:
    title: str
    label: str  # without the unit
    unit: str
    low_is_best: bool

    @property
    def factor(self):
        return 100 if self.unit == "%" else 1

    def text(self, value):
        return f"{value:.1f} %" if self.unit == "%" else f"{value:.3f}"


# Columns that are drawn.
MEASURES = {
    "loss": Measure("Training loss", "cross-entropy, mean since the point before", "nats", True),
    "validation_loss": Measure("Validation loss", "cross-entropy", "nats", True),
    "accuracy": Measure("Accuracy on the test data", "correct", "%", False),
}


def parse_rows(path):
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            name = next(row[column] for column in NAMES if column in row)
            place = next(column for column in PLACES if column in row)
            # JSON's null stands for what was not finite; NaN leaves a gap in the line.
            numbers = {
                column: float("nan") if row[column] is None else float(row[column])
                for column in (place, *MEASURES)
                if column in row
            }
            if len(numbers) == 1:
                raise ValueError("no measure")
        except (ValueError, TypeError, StopIteration):
            sys.exit(f"{path}:{number}: not a line of metrics")
        yield number, str(name), place, numbers


def read_metrics(path):
    """The column of the places, and rows (numbers by column) by name, names in their order."""
    rows = list(parse_rows(path))
    if not rows:
        sys.exit(f"{path}: holds no metrics")
    _, _, place, first = rows[0]
    series = {}
    for number, name, _, numbers in rows:
        if numbers.keys() != first.keys():
            sys.exit(f"{path}:{number}: has other columns than the lines before")
        series.setdefault(name, []).append(numbers)
    return place, dict(sorted(series.items()))


def style_axes(axes, measure, place):
    axes.set_title(measure.title, loc="left", fontsize=12, fontweight="bold")
    axes.set_xlabel(PLACES[place])
    axes.set_ylabel(f"{measure.label} [{measure.unit}]")
    axes.set_xlim(left=0)
    axes.grid(True, color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw_measure(axes, column, place, series):
    measure, ends = MEASURES[column], []
    for index, (name, rows) in enumerate(series.items()):
        places, values = [row[place] for row in rows], [measure.factor * row[column] for row in rows]
        ends.append((values[-1], places[-1]))
        # Lines may lie on each other: later ones are thinner, their markers hollow, so all can be seen.
        axes.plot(
            places,
            values,
            color=COLOURS[index % len(COLOURS)],
            marker=MARKERS[index % len(MARKERS)],
            label=name,
            linewidth=2.6 if index == 0 else 1.4,
            markersize=6,
            markerfacecolor=None if index == 0 else "white",
            markeredgewidth=1.4,
        )
    style_axes(axes, measure, place)
    if measure.low_is_best:
        axes.set_ylim(bottom=0)
    else:
        axes.set_ylim(top=measure.factor)
    if finite := [end for end in ends if math.isfinite(end[0])]:
        value, at = min(finite) if measure.low_is_best else max(finite)
        axes.annotate(
            measure.text(value), xy=(at, value), xytext=(0, 8), textcoords="offset points", ha="center", fontsize=10
        )
    axes.legend(loc="upper right" if measure.low_is_best else "lower right", frameon=False)


def draw(place, series, title):
    first = next(iter(series.values()))[0]
    columns = [column for column in MEASURES if column in first]
    figure, panels = pyplot.subplots(
        1, len(columns), figsize=(5.5 * len(columns), 4.4), dpi=120, layout="constrained", squeeze=False
    )
    for axes, column in zip(panels[0], columns):
        draw_measure(axes, column, place, series)
    figure.suptitle(title, fontsize=13)
    return figure


def main():
    if len(sys.argv) != 4:
        sys.exit("usage: plot_metrics.py METRICS.jsonl PLOT.png TITLE")
    source, target, title = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    try:
        draw(*read_metrics(source), f"{title} ({source.resolve().parent.name})").savefig(target)
    except UnicodeDecodeError:
        sys.exit(f"{source}: not a text in UTF-8")
    except OSError as error:
        sys.exit(f"{error.filename or target}: {error.strerror}")


if __name__ == "__main__":
    main()

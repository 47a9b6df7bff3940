"""The picture of bench/netbed.py: how near each row is to the least time, and what servers gain over a ring."""

import matplotlib

matplotlib.use("Agg")  # draws into files, needs no display
from matplotlib import pyplot  # noqa: E402

MEASURED, BEST = "#3b6fb6", "#6b6b6b"


def label_of(row):
    kind = "" if row["kind"] == "service" else f" {row['kind']}"
    return f"({row['workers']},{row['servers']}) {row['bytes'] / 1e6:.0f} MB{kind}"


def draw_ratios(axes, rows):
    places = range(len(rows))
    axes.barh(places, [row["ratio"] for row in rows], color=MEASURED)
    axes.plot([row["bar"] for row in rows], places, "|", color=BEST, markersize=9, label="bar")
    axes.set_yticks(places, [label_of(row) for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set_xlim(0.95, max(1.1, *(row["ratio"] + 0.02 for row in rows)))
    axes.set_xlabel("time over the least time, (workers, servers)")
    axes.legend(frameon=False)


def draw_gains(axes, rows):
    """As Figure 12 of the paper: one line for each number of workers."""
    for workers in sorted({row["workers"] for row in rows}):
        line = sorted((row["servers"], row["gain"], row["best_gain"]) for row in rows if row["workers"] == workers)
        servers, gains, best = zip(*line)
        (drawn,) = axes.plot(servers, gains, "o-", label=f"{workers} workers")
        axes.plot(servers, best, "--", color=drawn.get_color(), linewidth=1)
    axes.set_xlabel("servers")
    axes.set_ylabel("times as fast as our ring (dashed: at best)")
    if rows:
        axes.legend(frameon=False)


def draw(rows, path):
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(13, max(5, 0.2 * len(rows))), layout="constrained")
    draw_ratios(left, rows)
    draw_gains(right, [row for row in rows if "gain" in row])
    figure.savefig(path, dpi=120)
    pyplot.close(figure)

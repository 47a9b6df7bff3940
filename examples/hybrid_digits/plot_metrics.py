"""Draws a run's metrics.jsonl: loss and test accuracy over time, a line for each trainer.

    python plot_metrics.py METRICS.jsonl PLOT.png

Ends with one sentence and status 1 when it cannot.
"""

import json
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


def read_metrics(path):
    """Lists of (seconds, loss, accuracy) by trainer, trainers in the order of their names."""
    series = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            point = [row["seconds"], row["loss"], row["accuracy"]]
            trainer = str(row["trainer"])
        except (ValueError, KeyError, TypeError):
            sys.exit(f"{path}:{number}: not a line of metrics")
        # JSON's null stands for what was not finite; NaN leaves a gap in the line.
        series.setdefault(trainer, []).append([float("nan") if value is None else value for value in point])
    if not series:
        sys.exit(f"{path}: holds no metrics")
    return dict(sorted(series.items()))


def style_axes(axes, title, label):
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.set_xlabel("time since training began [s]")
    axes.set_ylabel(label)
    axes.set_xlim(left=0)
    axes.grid(True, color="#e3e3e3", linewidth=0.8)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def draw(series):
    figure, (loss, accuracy) = pyplot.subplots(1, 2, figsize=(11, 4.4), dpi=120, layout="constrained")
    for index, (trainer, points) in enumerate(series.items()):
        seconds, losses, accuracies = zip(*points)
        # Trainers in step lie on each other: later lines are thinner, their markers hollow, so all can be seen.
        look = {
            "color": COLOURS[index % len(COLOURS)],
            "marker": MARKERS[index % len(MARKERS)],
            "label": trainer,
            "linewidth": 2.6 if index == 0 else 1.4,
            "markersize": 6,
            "markerfacecolor": None if index == 0 else "white",
            "markeredgewidth": 1.4,
        }
        loss.plot(seconds, losses, **look)
        accuracy.plot(seconds, [100 * value for value in accuracies], **look)
    style_axes(loss, "Training loss", "cross-entropy, mean of the epoch [nats]")
    style_axes(accuracy, "Accuracy on the test digits", "correct [%]")
    loss.set_ylim(bottom=0)
    accuracy.set_ylim(top=100)
    best = max((point[2], trainer) for trainer, points in series.items() for point in points[-1:])
    accuracy.annotate(
        f"{100 * best[0]:.1f} %",
        xy=(series[best[1]][-1][0], 100 * best[0]),
        xytext=(0, 8),
        textcoords="offset points",
        ha="center",
        fontsize=10,
    )
    accuracy.legend(loc="lower right", frameon=False)
    loss.legend(loc="upper right", frameon=False)
    figure.suptitle(
        "hybrid_digits: an embedding bag and a linear layer on 8x8 handwritten digits", fontsize=13
    )
    return figure


def main():
    if len(sys.argv) != 3:
        sys.exit("usage: plot_metrics.py METRICS.jsonl PLOT.png")
    source, target = (pathlib.Path(argument) for argument in sys.argv[1:])
    try:
        draw(read_metrics(source)).savefig(target)
    except OSError as error:
        sys.exit(f"{error.filename or target}: {error.strerror}")


if __name__ == "__main__":
    main()

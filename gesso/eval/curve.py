"""The losses of a training run as an SVG plot."""

from collections.abc import Mapping, Sequence

from gesso.eval.plot import Point, Series, svg

POINTS = 60  # of the training loss; each is the mean of some steps, because single steps are noisy


def loss_curve(metrics: Sequence[Mapping[str, float]], title: str) -> str:
    """Return the plot of the training loss and, if there is one, the held-out loss against the step."""
    width = max(1, len(metrics) // POINTS)
    groups = [metrics[first : first + width] for first in range(0, len(metrics), width)]
    lines = [
        Series("training", [Point(group[-1]["step"], sum(m["loss"] for m in group) / len(group)) for group in groups])
    ]
    if held_out := [Point(m["step"], m["held_out"]) for m in metrics if "held_out" in m]:
        lines.append(Series("held out", held_out))
    top = max(point.y for line in lines for point in line.points)
    return svg(lines, title=title, x_label="step", y_label="loss", top=top)

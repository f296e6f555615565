"""Line plots as self-contained SVG without fonts or scripts, readable on light and dark backgrounds."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from gesso.eval.evaluate import Evaluation

WIDTH, HEIGHT = 640, 420
# Margins.
LEFT, RIGHT = 64, 24
TOP, BOTTOM = 68, 56
# (light, dark) pairs of Okabe and Ito's colours for colour-blind readers. The markers differ as well.
COLOURS = (("#0072b2", "#56b4e9"), ("#d55e00", "#e69f00"), ("#007a5a", "#2fc79a"), ("#a8487f", "#e59cc4"))
MARKERS = ("M-4 0a4 4 0 1 0 8 0a4 4 0 1 0-8 0", "M-4-4h8v8h-8z", "M0-5l5 9h-10z", "M0-5.5l5.5 5.5l-5.5 5.5l-5.5-5.5z")

ROUND = tuple(digits * 10.0**power for power in range(-2, 6) for digits in (1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9))


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    low: float | None = None
    high: float | None = None
    note: str = ""  # tooltip


@dataclass(frozen=True)
class Series:
    name: str
    points: Sequence[Point]
    connected: bool = True


def series(name: str, evaluations: Sequence["Evaluation"], score: str) -> Series:
    """Return a score against the step limit of each evaluation."""
    points = []
    for evaluation in evaluations:
        figure = evaluation.scores[score]
        points.append(
            Point(
                x=evaluation.settings["steps"],
                y=figure.mean,
                low=figure.low,
                high=figure.high,
                note=f"{evaluation.denoising_steps.mean:.1f} steps taken on average",
            )
        )
    return Series(name=name, points=points)


def svg(
    lines: Sequence[Series],
    *,
    title: str,
    x_label: str = "denoising steps allowed",
    y_label: str,
    top: float | None = None,
) -> str:
    """Return the plot. The x axis is logarithmic if the points span a factor of 8 or more.

    The y axis ends at `top`. Without it, y values are shares of 1 and shown in percent.
    """
    xs = sorted({point.x for line in lines for point in line.points})
    place_x, ticks = _x_axis(xs)
    place_y = _YAxis(top)
    described = "; ".join(
        f"{line.name}: " + ", ".join(f"{place_y.text(p.y)} at {p.x:g}" for p in line.points) for line in lines
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        'role="img" aria-labelledby="title desc">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="desc">{escape(y_label)} against {escape(x_label)}. {escape(described)}.</desc>',
        f"<style>{_style(len(lines))}</style>",
        f'<rect class="page" width="{WIDTH}" height="{HEIGHT}"/>',
        f'<text class="title" x="{LEFT}" y="26">{escape(title)}</text>',
    ]
    for share in (0, 0.2, 0.4, 0.6, 0.8, 1):
        y = place_y(share * place_y.top)
        label = f"{share:.0%}" if top is None else f"{share * top:.2g}"
        parts.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
        parts.append(f'<text class="end" x="{LEFT - 8}" y="{y + 4:.1f}">{label}</text>')
    for tick in ticks:
        x = place_x(tick)
        parts.append(f'<path class="axis" d="M{x:.1f} {place_y(0):.1f}v5"/>')
        parts.append(f'<text class="middle" x="{x:.1f}" y="{place_y(0) + 19:.1f}">{tick:g}</text>')
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
    parts.append(f'<text class="middle" x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 14}">{escape(x_label)}</text>')
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(f'<text class="middle" transform="translate(16 {middle}) rotate(-90)">{escape(y_label)}</text>')
    for n, line in enumerate(lines):
        parts.append(_drawn(line, n, place_x, place_y))
    if len(lines) > 1:
        parts += _legend(lines)
    return "\n".join([*parts, "</svg>", ""])


class _XAxis:
    """Map x values to pixels, linearly or logarithmically."""

    def __init__(self, low: float, high: float, log: bool) -> None:
        self.low = low
        self.high = high
        self.log = log

    def __call__(self, x: float) -> float:
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, x))
        share = (at - low) / (high - low) if high > low else 0.5
        return LEFT + 16 + share * (WIDTH - LEFT - RIGHT - 32)


def _x_axis(xs: Sequence[float]) -> tuple[_XAxis, list[float]]:
    """Return the axis and its ticks: the points if they are whole, or else round numbers, not too close together."""
    axis = _XAxis(xs[0], xs[-1], log=xs[0] > 0 and xs[-1] / xs[0] >= 8)
    ticks: list[float] = []
    for x in xs if all(float(x).is_integer() for x in xs) else [x for x in ROUND if xs[0] <= x <= xs[-1]]:
        if not ticks or axis(x) - axis(ticks[-1]) >= 26:
            ticks.append(x)
    return axis, ticks


class _YAxis:
    """Map y values from 0 to `top` to pixels, and format them."""

    def __init__(self, top: float | None) -> None:
        self.top = 1.0 if top is None else top
        self.percent = top is None

    def __call__(self, y: float) -> float:
        return HEIGHT - BOTTOM - min(max(y / self.top, 0), 1) * (HEIGHT - TOP - BOTTOM)

    def text(self, y: float) -> str:
        return f"{100 * y:.1f} %" if self.percent else f"{y:.3g}"


def _drawn(line: Series, n: int, place_x: _XAxis, place_y: _YAxis) -> str:
    points = sorted(line.points, key=lambda point: point.x)
    path = "L".join(f"{place_x(p.x):.1f} {place_y(p.y):.1f}" for p in points)
    parts = [f'<g class="s{n % len(COLOURS)}">']
    if line.connected:
        parts.append(f'<path class="line" d="M{path}"/>')
    for p in points:
        x, y = place_x(p.x), place_y(p.y)
        interval = ""
        if p.low is not None and p.high is not None:
            interval = f" ({place_y.text(p.low)} to {place_y.text(p.high)})"
            low, high = place_y(p.low), place_y(p.high)
            parts.append(f'<path class="bar" d="M{x:.1f} {low:.1f}V{high:.1f}m-4 0h8M{x - 4:.1f} {low:.1f}h8"/>')
        note = escape(f"{line.name}, {p.x:g}: {place_y.text(p.y)}{interval}{'; ' if p.note else ''}{p.note}")
        parts.append(f'<path class="point" transform="translate({x:.1f} {y:.1f})" d="{MARKERS[n % len(MARKERS)]}">')
        parts.append(f"<title>{note}</title></path>")
    return "\n".join([*parts, "</g>"])


def _legend(lines: Sequence[Series]) -> Iterator[str]:
    """Yield the legend in a row below the title, outside the plot. Assumes 7 pixels per character."""
    x = LEFT
    for n, line in enumerate(lines):
        yield (
            f'<g class="s{n % len(COLOURS)}"><path class="line" d="M{x} 46h{24 * line.connected}"/>'
            f'<path class="point" transform="translate({x + 12} 46)" d="{MARKERS[n % len(MARKERS)]}"/></g>'
            f'<text x="{x + 30}" y="50">{escape(line.name)}</text>'
        )
        x += 52 + 7 * len(line.name)


def _style(count: int) -> str:
    light, dark = (
        "".join(f".s{n}{{color:{pair[which]}}}" for n, pair in enumerate(COLOURS[:count])) for which in (0, 1)
    )
    return (
        "svg{color-scheme:light dark;color:#222;font:12px system-ui,sans-serif}.page{fill:#fff}text{fill:currentColor}"
        ".title{font-size:15px;font-weight:600}.end{text-anchor:end}.middle{text-anchor:middle}"
        ".axis,.grid,.line,.bar{fill:none;stroke:currentColor}.grid{stroke-opacity:.15}"
        ".line{stroke-width:1.5}.bar{stroke-opacity:.7}.point{fill:currentColor}"
        f"{light}@media (prefers-color-scheme:dark){{svg{{color:#ddd}}.page{{fill:#16181c}}{dark}}}"
    )

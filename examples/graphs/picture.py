"""Draw a graph as SVG: a question with its answer, or a run of a model, step by step.

    python -m examples.graphs.picture --out examples/graphs/question.svg --level hard
    python -m examples.graphs.picture --model runs/graphs/model --out examples/graphs/settling.svg --seed 4

The first command needs no model. The second takes the drafts of one run; edges that its answer lacks are dashed.
"""

import argparse
import math
import random
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import gesso
from examples.graphs.families import LEVELS, draw_question
from examples.graphs.graph import Edge, Graph, distances, edges
from examples.graphs.requirements import holds
from examples.graphs.task import Graphs, prompt_of
from examples.graphs.text import NAMES, edges_in_draft, read_rows, rows
from gesso.errors import InputError

SIDE, RADIUS, LINE = 200, 10, 17  # of a drawing, a vertex, and a line of text
STEPS, SHOWN = 48, 6  # of a run, and those that are drawn
STYLE = """<style>
text { font: 13px ui-monospace, Menlo, Consolas, monospace; fill: #211e19; }
.name { font-size: 11px; text-anchor: middle; dominant-baseline: central; }
.title { font-family: system-ui, sans-serif; fill: #645d52; }
line { stroke: #211e19; stroke-width: 1.6; }
line.other { stroke: #d0683c; stroke-dasharray: 4 3; }
circle { fill: #f1ece2; stroke: #645d52; }
@media (prefers-color-scheme: dark) {
  text { fill: #ece6da; } .title { fill: #a79f91; }
  line { stroke: #ece6da; } line.other { stroke: #e0a93f; }
  circle { fill: #282521; stroke: #a79f91; }
}
</style>"""
Place = tuple[float, float]


def places(graph: Graph) -> list[Place]:
    """Return a place for every vertex, at distances like the lengths of the shortest paths.

    Stress majorization (Gansner, Koren and North, Graph Drawing by Stress Majorization, 2004), from a circle.
    """
    count = len(graph)
    far = math.sqrt(count) + 1  # between components
    apart = [
        [min(found.get(j, far), far) for j in range(count)] for found in (distances(graph, i) for i in range(count))
    ]
    at = [complex(math.sin(turn), -math.cos(turn)) for turn in (2 * math.pi * i / count for i in range(count))]
    for _ in range(200):
        for i in range(count):
            total, weights = 0j, 0.0
            for j in set(range(count)) - {i}:
                away = at[i] - at[j]
                weight = apart[i][j] ** -2
                total += weight * (at[j] + apart[i][j] * away / max(abs(away), 1e-3))
                weights += weight
            at[i] = total / weights
    left, right = min(one.real for one in at), max(one.real for one in at)
    top, bottom = min(one.imag for one in at), max(one.imag for one in at)
    scale = (SIDE - 2 * RADIUS - 8) / max(right - left, bottom - top)
    middle = complex(left + right, top + bottom) / 2
    return [((one - middle).real * scale + SIDE / 2, (one - middle).imag * scale + SIDE / 2) for one in at]


def drawing(shown: Iterable[Edge], final: Collection[Edge], at: Sequence[Place], x: float, y: float) -> str:
    """Return a group with these edges. Those that are not in `final` are dashed."""
    lines = [
        f'<line x1="{at[u][0]:.1f}" y1="{at[u][1]:.1f}" x2="{at[v][0]:.1f}" y2="{at[v][1]:.1f}"{kind}/>'
        for u, v in shown
        if v < len(at)
        for kind in ["" if (u, v) in final else ' class="other"']
    ]
    vertices = [
        f'<circle cx="{cx:.1f}" cy="{cy:.1f}" r="{RADIUS}"/><text class="name" x="{cx:.1f}" y="{cy:.1f}">{name}</text>'
        for name, (cx, cy) in zip(NAMES, at, strict=False)
    ]
    return f'<g transform="translate({x} {y})">' + "".join(lines + vertices) + "</g>"


def text_lines(lines: Sequence[str], x: float, y: float, *, title: bool = False) -> str:
    kind = ' class="title"' if title else ""
    return "".join(f'<text{kind} x="{x}" y="{y + LINE * n}">{escape(line)}</text>' for n, line in enumerate(lines))


def document(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    box = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" {box} role="img" aria-label="{escape(label)}">'
    return "\n".join([opening, STYLE, *parts, "</svg>", ""])


def question_picture(requirements: Sequence[str], graph: Graph) -> str:
    """Return a question, its answer as rows, and the drawing of the answer."""
    answer, found = rows(graph).split("\n"), edges(graph)
    columns = [20.0, 290.0, 510.0]
    height = max(SIDE + 50, 60 + LINE * max(len(answer), len(requirements)))
    parts = [
        text_lines([title], x, 24, title=True)
        for title, x in zip(("requirements", "answer", "graph"), columns, strict=True)
    ]
    parts += [text_lines(requirements, columns[0], 54), text_lines(answer, columns[1], 54)]
    parts.append(drawing(found, found, places(graph), columns[2], 36))
    return document(columns[2] + SIDE + 20, height, "Requirements, a graph that meets them, and its drawing", parts)


def settling_picture(requirements: Sequence[str], drafts: Sequence[str]) -> str:
    """Return a row of graphs, one for each of a few drafts of a run."""
    graph = read_rows(drafts[-1])
    if graph is None:
        raise InputError("the answer of this run is not a graph; choose another --seed, or train longer")
    final, at = edges(graph), places(graph)
    shown = sorted({round(n * (len(drafts) - 1) / (SHOWN - 1)) for n in range(SHOWN)})
    parts = []
    for column, number in enumerate(shown):
        x = column * (SIDE + 20) + 10
        parts.append(text_lines([f"step {number + 1}", met(requirements, drafts[number])], x, 24, title=True))
        parts.append(drawing(edges_in_draft(drafts[number]), final, at, x, 56))
    parts.append(text_lines([" · ".join(requirements)], 10, SIDE + 84))
    return document(len(shown) * (SIDE + 20), SIDE + 100, "Drafts of a run as graphs", parts)


def met(requirements: Sequence[str], draft: str) -> str:
    graph = read_rows(draft)
    if graph is None:
        return "not a graph yet"
    return f"{sum(holds(line, graph) for line in requirements)} of {len(requirements)} met"


def run(model: str, requirements: Sequence[str], seed: int) -> list[str]:
    """Return the text of every draft of a run."""
    events = gesso.load(model).stream(prompt_of(tuple(requirements)), seed=seed, steps=STEPS, **Graphs.options)
    return [event.text for event in events if event.kind == "draft"]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="an SVG file")
    parser.add_argument("--model", help="checkpoint that answers the question")
    parser.add_argument("--level", choices=LEVELS, default="medium")
    parser.add_argument("--seed", type=int, default=0, help="of the question and of the run")
    asked = parser.parse_args(arguments)
    question = draw_question(LEVELS[asked.level], "test", random.Random(f"picture {asked.seed}"))
    if asked.model is None:
        picture = question_picture(question.requirements, question.graph)
    else:
        picture = settling_picture(question.requirements, run(asked.model, question.requirements, asked.seed))
    asked.out.write_text(picture, encoding="utf-8")
    print(f"{asked.out}: {', '.join(question.requirements)}")


if __name__ == "__main__":
    main()

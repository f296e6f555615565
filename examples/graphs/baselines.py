"""Score programs without a model on the held-out questions.

    python -m examples.graphs.baselines --count 1000
    python -m examples.graphs.baselines --count 1000 --level hard

- `random`: a graph with as many edges as required.
- `degrees`: a random graph with the required degrees. If they are not given, as `random`.
- `repair`: begins as `degrees` and changes edges one after another. A change stays if as many requirements are met as
  before. Degrees, or the number of edges, stay as required.
- `nearest`: the training graph whose question has the most lines in common.

A program with several tries stops at the first graph that meets all requirements. The verifier is the same as that of
the task. No program but `nearest` sees training data.
"""

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from examples.graphs.graph import Edge, Graph, edges, from_edges
from examples.graphs.requirements import holds, parsed
from examples.graphs.task import Easy, Graphs, Hard, Medium
from examples.graphs.text import read_rows, rows
from gesso.eval.estimate import Estimate, estimate_score
from gesso.eval.task import Item

Lines = Sequence[str]
Start = Callable[[Lines, random.Random], Graph]
Program = Callable[[Lines, random.Random], Iterator[Graph]]  # yields one graph per try
LEVELS = {"all": Graphs, "easy": Easy, "medium": Medium, "hard": Hard}
TRIES = (1, 4, 48)  # 4 as with `--attempts 4`; 48 as the passes of an answer with `--steps 48`
TRAINING = 10_000  # rows for `nearest`


# --- graphs to begin with -------------------------------------------------------------------------------------------


def random_graph(lines: Lines, rng: random.Random) -> Graph:
    required = numbers_of(lines)
    (vertices,) = required["vertices"]
    pairs = [(u, v) for v in range(vertices) for u in range(v)]
    count = sum(required["degrees"]) // 2 if "degrees" in required else required.get("edges", [vertices])[0]
    return from_edges(vertices, rng.sample(pairs, count))


def graph_with_degrees(lines: Lines, rng: random.Random) -> Graph:
    """Return a graph with the required degrees: one by Havel and Hakimi, with randomly exchanged edges."""
    required = numbers_of(lines).get("degrees")
    if required is None:
        return random_graph(lines, rng)
    left, found = dict(enumerate(required)), list[Edge]()
    while left:
        vertex = max(left, key=lambda one: left[one])
        for other in sorted(left.keys() - {vertex}, key=lambda one: -left[one])[: left.pop(vertex)]:
            left[other] -= 1
            found.append((min(vertex, other), max(vertex, other)))
    graph = from_edges(len(required), found)
    for _ in range(4 * len(found)):
        graph = exchanged(graph, rng)
    return graph


def nearest(training: Sequence[tuple[frozenset[str], Graph]]) -> Start:
    def find(lines: Lines, rng: random.Random) -> Graph:
        asked = set(lines)
        # The number of vertices counts first: with another one, most requirements cannot be met.
        return max(training, key=lambda row: (lines[0] in row[0], len(asked & row[0]), -len(row[0])))[1]

    return find


# --- changes --------------------------------------------------------------------------------------------------------


def exchanged(graph: Graph, rng: random.Random) -> Graph:
    """Return the graph with the ends of two edges exchanged, which keeps all degrees, or the same graph."""
    if len(found := edges(graph)) < 2:
        return graph
    (a, b), (c, d) = rng.sample(found, 2)
    if rng.random() < 0.5:
        c, d = d, c
    if len({a, b, c, d}) < 4 or graph[a] >> d & 1 or graph[c] >> b & 1:
        return graph
    return from_edges(len(graph), [*(set(found) - {(a, b), (min(c, d), max(c, d))}), (a, d), (c, b)])


def moved(graph: Graph, rng: random.Random) -> Graph:
    """Return the graph with one edge in another place."""
    found = edges(graph)
    free = [(u, v) for v in range(len(graph)) for u in range(v) if not graph[v] >> u & 1]
    if not found or not free:
        return graph
    found[rng.randrange(len(found))] = rng.choice(free)
    return from_edges(len(graph), found)


def flipped(graph: Graph, rng: random.Random) -> Graph:
    """Return the graph with one edge more or less."""
    u, v = sorted(rng.sample(range(len(graph)), 2))
    return from_edges(len(graph), set(edges(graph)) ^ {(u, v)})


# --- programs -------------------------------------------------------------------------------------------------------


def drawn(start: Start) -> Program:
    """Return a program that draws every graph anew."""

    def program(lines: Lines, rng: random.Random) -> Iterator[Graph]:
        while True:
            yield start(lines, rng)

    return program


def repair(lines: Lines, rng: random.Random) -> Iterator[Graph]:
    required = numbers_of(lines)
    change = exchanged if "degrees" in required else moved if "edges" in required else flipped
    graph = graph_with_degrees(lines, rng)
    best = met(lines, graph)
    yield graph
    while True:
        yield (candidate := change(graph, rng))
        if (count := met(lines, candidate)) >= best:
            graph, best = candidate, count


def numbers_of(lines: Lines) -> dict[str, list[int]]:
    return {name: numbers for name, _, numbers in map(parsed, lines)}


def met(lines: Lines, graph: Graph) -> int:
    return sum(holds(line, graph) for line in lines)


def answer(program: Iterator[Graph], lines: Lines, tries: int) -> Graph:
    """Return the first of `tries` graphs that meets all requirements, otherwise the best of them."""
    best, most = Graph(), -1
    for graph in islice(program, tries):
        if (count := met(lines, graph)) > most:
            best, most = graph, count
        if most == len(lines):
            break
    return best


def scored(program: Program, items: Sequence[Item], tries: int) -> dict[str, Estimate]:
    task, found = Graphs(), []
    for item in items:
        lines = item.meta["requirements"]
        graph = answer(program(lines, random.Random(item.name)), lines, tries)
        found.append(task.score(item, rows(graph)))
    return {name: estimate_score([one[name] for one in found]) for name in ("valid", "share")}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=1000, help="questions of the test split, as `gesso eval --count`")
    parser.add_argument("--seed", type=int, default=0, help="of the questions, as `gesso eval --seed`")
    parser.add_argument("--level", choices=LEVELS, default="all")
    parser.add_argument("--training", type=int, default=TRAINING, help="training rows for `nearest`")
    asked = parser.parse_args(arguments)
    task = LEVELS[asked.level]()
    items = list(task.items("test", asked.count, asked.seed))
    known = [
        (frozenset(item.meta["requirements"]), graph)
        for item in task.items("train", asked.training, asked.seed)
        if (graph := read_rows(item.expected))
    ]
    programs: list[tuple[str, Program, tuple[int, ...]]] = [
        ("random", drawn(random_graph), TRIES),
        ("degrees", drawn(graph_with_degrees), TRIES),
        ("repair", repair, TRIES),
        ("nearest", drawn(nearest(known)), (1,)),
    ]
    print(f"{'program':10}{'tries':>6}  {'valid, %':24}{'share, %'}")
    for name, program, counts in programs:
        for tries in counts:
            cells = [found.shown(100) for found in scored(program, items, tries).values()]
            print(f"{name:10}{tries:6}  {cells[0]:24}{cells[1]:24}".rstrip())


if __name__ == "__main__":
    main()

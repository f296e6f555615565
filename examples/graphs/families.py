"""Random graphs of mixed families, and questions about them.

Vertices are lettered by falling degree; of equal ones, the one comes first that is joined to the earlier vertices. One
graph in many letterings would be many answers to learn for one question.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from examples.graphs.graph import MOST_VERTICES, Edge, Graph, degrees, from_edges, relabelled
from examples.graphs.requirements import describe
from gesso.eval.task import split_of


@dataclass(frozen=True)
class Level:
    vertices: tuple[int, int]
    requirements: tuple[int, int]  # besides the number of vertices
    with_degrees: float  # share of the questions that give the degree of every vertex


LEVELS = {
    "easy": Level((5, 8), (2, 3), 0.5),
    "medium": Level((8, 10), (3, 4), 0.75),
    "hard": Level((10, MOST_VERTICES), (4, 6), 1.0),
}


@dataclass(frozen=True)
class Question:
    requirements: tuple[str, ...]
    graph: Graph  # one that meets them


def draw_question(level: Level, split: str, rng: random.Random) -> Question:
    """Return a question of a split.

    No degree sequence of a split occurs in another one, so no graph does, whatever its letters. Questions without the
    degrees are divided by their lines as well: no question of a split occurs in another one, in any order.
    """
    while True:
        graph = draw_graph(rng.randint(*level.vertices), rng)
        if split_of(f"degrees {sorted(degrees(graph))}") != split:
            continue
        count, with_degrees = rng.randint(*level.requirements), rng.random() < level.with_degrees
        lines = describe(graph, count, rng, with_degrees=with_degrees)
        if with_degrees or split_of(f"question {sorted(lines)}") == split:
            return Question(tuple(lines), graph)


# --- graphs ---------------------------------------------------------------------------------------------------------


def draw_graph(vertices: int, rng: random.Random) -> Graph:
    """Return a lettered graph of a random family. Graphs of mostly single vertices are left out."""
    family = rng.choice(FAMILIES)
    while True:
        graph = from_edges(vertices, family(vertices, rng))
        if sum(degrees(graph)) // 2 >= vertices - 2:
            return lettered(graph, rng)


def lettered(graph: Graph, rng: random.Random) -> Graph:
    """Return the graph with its vertices in the order of this file's first lines. Ties are broken at random."""
    left = rng.sample(range(len(graph)), len(graph))
    order: list[int] = []
    while left:
        best = max(left, key=lambda vertex: (graph[vertex].bit_count(), [graph[vertex] >> one & 1 for one in order]))
        order.append(best)
        left.remove(best)
    return relabelled(graph, order)


def _uniform(vertices: int, rng: random.Random) -> list[Edge]:
    """Join each pair with the same probability."""
    share = rng.uniform(0.15, 0.6)
    return [pair for pair in _pairs(vertices) if rng.random() < share]


def _tree_and_more(vertices: int, rng: random.Random) -> list[Edge]:
    """Return a random tree, from long and thin to short and wide, and up to three further edges."""
    reach = rng.randint(1, vertices)
    tree = [(rng.randrange(max(0, v - reach), v), v) for v in range(1, vertices)]
    return tree + rng.sample(_pairs(vertices), rng.randint(0, 3))


def _parted(vertices: int, rng: random.Random) -> list[Edge]:
    """Join vertices of different parts only, of two to four parts, so that as many colours suffice."""
    parts, share = rng.choice((2, 2, 3, 4)), rng.uniform(0.3, 0.8)
    part = [rng.randrange(parts) for _ in range(vertices)]
    return [(u, v) for u, v in _pairs(vertices) if part[u] != part[v] and rng.random() < share]


def _cycle_and_chords(vertices: int, rng: random.Random) -> list[Edge]:
    """Return a cycle through all vertices and some further edges."""
    cycle = [(v, (v + 1) % vertices) for v in range(vertices)]
    return cycle + rng.sample(_pairs(vertices), rng.randint(0, vertices // 2))


def _separate(vertices: int, rng: random.Random) -> list[Edge]:
    """Return two or three graphs of other families without edges between them."""
    cuts = sorted(rng.sample(range(1, vertices), rng.randint(1, 2)))
    found: list[Edge] = []
    for start, end in zip([0, *cuts], [*cuts, vertices], strict=True):
        if end - start >= 3:
            part = rng.choice(FAMILIES[:-1])(end - start, rng)
            found += [(start + u, start + v) for u, v in part]
        elif end - start == 2:
            found.append((start, start + 1))
    return found


def _pairs(vertices: int) -> list[Edge]:
    return [(u, v) for v in range(vertices) for u in range(v)]


FAMILIES: tuple[Callable[[int, random.Random], list[Edge]], ...] = (
    _uniform,
    _tree_and_more,
    _parted,
    _cycle_and_chords,
    _separate,
)

"""Requirements: one line of text each, checked exactly.

    vertices: 8
    edges: 11
    degrees: 4 3 3 3 3 2 2 2
    connected
    components: 2
    bipartite
    triangles: 0
    distance a h: 3
    diameter: 4
    colours: 1 2 1 3 2 1 2 3
    chromatic number: 3
    Hamiltonian path

`degrees` and `colours` have one number per vertex, in order. `colours` is a proper colouring: no edge joins vertices of
the same colour.
"""

import random
import re
from collections.abc import Callable, Sequence

from examples.graphs.graph import (
    Graph,
    chromatic_number,
    colouring,
    components,
    degrees,
    diameter,
    distances,
    edges,
    has_hamiltonian_path,
    is_properly_coloured,
    triangles,
)
from examples.graphs.text import NAMES
from gesso.errors import InputError

Check = Callable[[Graph, list[int], list[int]], bool]  # of the graph, the vertices in the line, and its numbers

CHECKS: dict[str, Check] = {
    "vertices": lambda graph, _, numbers: numbers == [len(graph)],
    "edges": lambda graph, _, numbers: numbers == [len(edges(graph))],
    "degrees": lambda graph, _, numbers: numbers == degrees(graph),
    "connected": lambda graph, *_: components(graph) == 1,
    "components": lambda graph, _, numbers: numbers == [components(graph)],
    "bipartite": lambda graph, *_: colouring(graph, 2) is not None,
    "triangles": lambda graph, _, numbers: numbers == [triangles(graph)],
    "distance": lambda graph, ends, numbers: _distance(graph, *ends) == numbers[0],
    "diameter": lambda graph, _, numbers: numbers == [diameter(graph)],
    "colours": lambda graph, _, numbers: is_properly_coloured(graph, numbers),
    "chromatic number": lambda graph, _, numbers: numbers == [chromatic_number(graph)],
    "Hamiltonian path": lambda graph, *_: has_hamiltonian_path(graph),
}
# The form of what follows the name: nothing, one number, one per vertex, or two vertices and a number.
_ONE, _LIST, _ENDS = r": \d+", r":(?: \d+)+", r" [a-l] [a-l]: \d+"
_FORMS = {
    "connected": "",
    "bipartite": "",
    "Hamiltonian path": "",
    "distance": _ENDS,
    "degrees": _LIST,
    "colours": _LIST,
}
_LINE = re.compile("|".join(f"({name})({_FORMS.get(name, _ONE)})" for name in CHECKS))
# Requirements that follow from another one: only one of both is stated.
_IMPLIED = {
    "degrees": {"edges"},
    "diameter": {"connected"},
    "Hamiltonian path": {"connected"},
    "bipartite": {"triangles"},
}


def holds(requirement: str, graph: Graph) -> bool:
    """Return whether a graph meets a requirement. A vertex that the graph does not have fails it."""
    name, vertices, numbers = parsed(requirement)
    if any(vertex >= len(graph) for vertex in vertices):
        return False
    return CHECKS[name](graph, vertices, numbers)


def parsed(requirement: str) -> tuple[str, list[int], list[int]]:
    """Return the name, the vertices and the numbers of a line. Reject unknown requirements."""
    found = _LINE.fullmatch(requirement)
    if not found:
        raise InputError(
            f"unknown requirement {requirement!r}; expected a line such as those in examples/graphs/requirements.py"
        )
    name, rest = (part for part in found.groups() if part is not None)
    names = rest.partition(":")[0].split()
    return name, [NAMES.index(vertex) for vertex in names], [int(number) for number in re.findall(r"\d+", rest)]


def renamed(requirement: str, order: Sequence[int]) -> str:
    """Return the requirement for a graph that is relabelled by `order`: its vertex i was vertex `order[i]`."""
    name, vertices, numbers = parsed(requirement)
    if name in ("degrees", "colours"):
        return _listed(name, [numbers[vertex] for vertex in order])
    if name == "distance":
        start, end = sorted(order.index(vertex) for vertex in vertices)
        return _apart(start, end, numbers[0])
    return requirement


def describe(graph: Graph, count: int, rng: random.Random, *, with_degrees: bool) -> list[str]:
    """Return the number of vertices and up to `count` other requirements that a graph meets, in random order."""
    names = [name for name in CHECKS if name not in ("vertices", "degrees")] + ["distance"]
    rng.shuffle(names)
    if with_degrees:
        names.insert(0, "degrees")
    chosen: dict[str, str] = {}
    for name in names:
        if len(chosen) == count:
            break
        if any(name in _IMPLIED.get(other, ()) or other in _IMPLIED.get(name, ()) for other in chosen.values()):
            continue
        if line := _state(name, graph, rng):
            chosen[line] = name
    lines = list(chosen)
    rng.shuffle(lines)
    return [f"vertices: {len(graph)}", *lines]


def _state(name: str, graph: Graph, rng: random.Random) -> str | None:
    """Return a requirement of this name that the graph meets, or None if there is none worth stating."""
    match name:
        case "edges":
            return f"edges: {len(edges(graph))}"
        case "degrees":
            return _listed(name, degrees(graph))
        case "connected":
            return name if components(graph) == 1 else None
        case "components":
            return f"components: {count}" if (count := components(graph)) > 1 else None
        case "triangles":
            return f"triangles: {triangles(graph)}"
        case "distance":
            u, v = sorted(rng.sample(range(len(graph)), 2))
            length = _distance(graph, u, v)
            return _apart(u, v, length) if length is not None and length > 1 else None
        case "diameter":
            return f"diameter: {length}" if (length := diameter(graph)) is not None else None
        case "colours":
            return _listed(name, colouring(graph, chromatic_number(graph)) or [])
        case "chromatic number":  # for 2, there is "bipartite"
            return f"chromatic number: {number}" if (number := chromatic_number(graph)) > 2 else None
        case _:  # bipartite, Hamiltonian path
            return name if holds(name, graph) else None


def _distance(graph: Graph, start: int, end: int) -> int | None:
    return distances(graph, start).get(end)


def _apart(u: int, v: int, length: int) -> str:
    return f"distance {NAMES[u]} {NAMES[v]}: {length}"


def _listed(name: str, numbers: Sequence[int]) -> str:
    return f"{name}: {' '.join(map(str, numbers))}"

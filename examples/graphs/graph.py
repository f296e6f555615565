"""Small graphs, and the properties that requirements name.

A graph is the tuple of its vertices' neighbours, each a bit mask: bit v of `graph[u]` is set if u and v are joined. All
properties are exact. They are fast because graphs have at most 12 vertices.
"""

from collections.abc import Iterable, Iterator, Sequence

Graph = tuple[int, ...]
Edge = tuple[int, int]

MOST_VERTICES = 12


def from_edges(vertices: int, edges: Iterable[Edge]) -> Graph:
    rows = [0] * vertices
    for u, v in edges:
        rows[u] |= 1 << v
        rows[v] |= 1 << u
    return tuple(rows)


def edges(graph: Graph) -> list[Edge]:
    """Return the edges (u, v) with u < v, ordered by v, then u: the order of the rows of an answer."""
    return [(u, v) for v, row in enumerate(graph) for u in range(v) if row >> u & 1]


def relabelled(graph: Graph, order: Sequence[int]) -> Graph:
    """Return the graph whose vertex number i is vertex `order[i]` of the given one."""
    place = {vertex: i for i, vertex in enumerate(order)}
    return from_edges(len(graph), ((place[u], place[v]) for u, v in edges(graph)))


def bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


# --- properties -----------------------------------------------------------------------------------------------------


def degrees(graph: Graph) -> list[int]:
    return [row.bit_count() for row in graph]


def distances(graph: Graph, start: int) -> dict[int, int]:
    """Return the length of the shortest path to every vertex that can be reached."""
    found, seen, front, length = {}, 1 << start, 1 << start, 0
    while front:
        found.update(dict.fromkeys(bits(front), length))
        reached = 0
        for vertex in bits(front):
            reached |= graph[vertex]
        front = reached & ~seen
        seen |= front
        length += 1
    return found


def components(graph: Graph) -> int:
    left, count = set(range(len(graph))), 0
    while left:
        left -= distances(graph, min(left)).keys()
        count += 1
    return count


def diameter(graph: Graph) -> int | None:
    """Return the longest of all shortest paths, or None if the graph is not connected."""
    found = [distances(graph, vertex) for vertex in range(len(graph))]
    return max(max(one.values()) for one in found) if len(found[0]) == len(graph) else None


def triangles(graph: Graph) -> int:
    return sum((graph[u] & graph[v] & ((1 << u) - 1)).bit_count() for u, v in edges(graph))


def colouring(graph: Graph, colours: int) -> list[int] | None:
    """Return the first proper colouring with at most `colours` colours (1, 2, …), or None."""
    chosen: list[int] = []

    def extend() -> bool:
        vertex = len(chosen)
        if vertex == len(graph):
            return True
        taken = {chosen[other] for other in bits(graph[vertex]) if other < vertex}
        # Colours are interchangeable: of those that no vertex has yet, only the first needs a try.
        for colour in range(1, min(colours, max(chosen, default=0) + 1) + 1):
            if colour not in taken:
                chosen.append(colour)
                if extend():
                    return True
                chosen.pop()
        return False

    return chosen if extend() else None


def chromatic_number(graph: Graph) -> int:
    return next(k for k in range(1, len(graph) + 1) if colouring(graph, k) is not None)


def is_properly_coloured(graph: Graph, colours: Sequence[int]) -> bool:
    return len(colours) == len(graph) and all(colours[u] != colours[v] for u, v in edges(graph))


def has_hamiltonian_path(graph: Graph) -> bool:
    """Return whether some path visits every vertex once."""
    whole, failed = (1 << len(graph)) - 1, set[tuple[int, int]]()

    def extend(visited: int, end: int) -> bool:
        if visited == whole:
            return True
        if (visited, end) in failed:
            return False
        # Vertices with few ways out are visited first, or no path would lead to them later.
        onward = sorted(bits(graph[end] & ~visited), key=lambda vertex: (graph[vertex] & ~visited).bit_count())
        if any(extend(visited | 1 << vertex, vertex) for vertex in onward):
            return True
        failed.add((visited, end))
        return False

    return any(extend(1 << vertex, vertex) for vertex in range(len(graph)))

"""Graphs as text: the rows that the model writes, and edge lists, DOT and JSON for other programs.

    python -m examples.graphs.text dot < answer.txt

A row is a vertex and, for each earlier vertex in order, 1 if they are joined and 0 if not. The first vertex, a, has no
row. This is the adjacency matrix below its diagonal:

    b 1
    c 0 1
    d 1 0 0

A pair of vertices has the same position in every answer, whatever the other edges are, and its digit is one token, as
the cells of a Sudoku. In a list of edges, one more edge would move all edges after it.
"""

import json
import re
import string
import sys

from examples.graphs.graph import MOST_VERTICES, Edge, Graph, edges, from_edges

NAMES = string.ascii_lowercase[:MOST_VERTICES]


def rows(graph: Graph) -> str:
    return "\n".join(
        " ".join([NAMES[v], *(str(graph[v] >> u & 1) for u in range(v))]) for v in range(1, len(graph))
    )  # fmt: skip


def read_rows(text: str) -> Graph | None:
    """Return the graph of an answer, or None if it has another format. White space at the ends is ignored."""
    found: list[Edge] = []
    lines = text.strip().split("\n")
    if not 1 <= len(lines) < MOST_VERTICES:
        return None
    for v, line in enumerate(lines, start=1):
        name, *digits = line.split(" ")
        if name != NAMES[v] or len(digits) != v or not set(digits) <= {"0", "1"}:
            return None
        found += [(u, v) for u, digit in enumerate(digits) if digit == "1"]
    return from_edges(len(lines) + 1, found)


def edges_in_draft(text: str) -> list[Edge]:
    """Return the edges that can be read in a draft. Lines that are not a row yet are skipped."""
    found = []
    for name, digits in re.findall(r"^([a-l])((?: \S+)+)$", text, re.MULTILINE):
        v = NAMES.index(name)
        found += [(u, v) for u, digit in enumerate(digits.split()[:v]) if digit == "1"]
    return found


def edge_list(graph: Graph) -> str:
    return " ".join(f"{NAMES[u]}-{NAMES[v]}" for u, v in sorted(edges(graph)))


def dot(graph: Graph) -> str:
    vertices = "".join(f"  {name};\n" for name in NAMES[: len(graph)])
    return "graph {\n" + vertices + "".join(f"  {NAMES[u]} -- {NAMES[v]};\n" for u, v in sorted(edges(graph))) + "}"


def as_json(graph: Graph) -> str:
    """Return JSON as node-link formats have it: the names of the vertices, and pairs of them."""
    pairs = [[NAMES[u], NAMES[v]] for u, v in sorted(edges(graph))]
    return json.dumps({"vertices": list(NAMES[: len(graph)]), "edges": pairs})


FORMATS = {"edges": edge_list, "dot": dot, "json": as_json}

if __name__ == "__main__":
    if sys.argv[1:] not in [[name] for name in FORMATS]:
        sys.exit(f"usage: python -m examples.graphs.text {{{','.join(FORMATS)}}} < answer.txt")
    if (graph := read_rows(sys.stdin.read())) is None:
        sys.exit('stdin is not a graph in rows such as "b 1", "c 0 1", one line per vertex')
    print(FORMATS[sys.argv[1]](graph))

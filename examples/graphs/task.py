"""The graph task: requirements in, a graph that meets all of them out.

    gesso eval examples.graphs.task:Graphs -m runs/graphs/model --count 1000 --steps 48
    gesso eval examples.graphs.task:Hard -m runs/graphs/model --count 1000 --steps 48 --attempts 4

Any graph that meets the requirements is right; `expected` is only the one that they were made from.
"""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar

from examples.graphs.families import LEVELS, Question, draw_question
from examples.graphs.graph import relabelled
from examples.graphs.requirements import holds, parsed, renamed
from examples.graphs.text import read_rows, rows
from gesso.eval.task import Item, check_draw

CANVAS = 88  # tokens: the longest answer and the end of the text


class Graphs:
    """Questions of all levels, equally many of each."""

    name: ClassVar[str] = "graphs"
    levels: ClassVar[tuple[str, ...]] = tuple(LEVELS)
    scores: ClassVar[tuple[str, ...]] = ("valid", "share", "parses")
    options: ClassVar[Mapping[str, Any]] = MappingProxyType({"max_new_tokens": CANVAS})

    def items(self, split: str, count: int, seed: int) -> Iterator[Item]:
        """Return different questions: no two have the same lines."""
        check_draw(split, count)
        seen: set[frozenset[str]] = set()
        for n in range(count):
            level = self.levels[n % len(self.levels)]
            rng = random.Random(f"graphs {level} {split} {seed} {n}")
            question = draw_question(LEVELS[level], split, rng)
            while frozenset(question.requirements) in seen:
                question = draw_question(LEVELS[level], split, rng)
            seen.add(frozenset(question.requirements))
            yield item_of(question, f"{level}/{split}/{seed}/{n}")

    def score(self, item: Item, output: str) -> dict[str, float]:
        """Return `valid` (all requirements are met), `share` (of requirements that are) and `parses`."""
        graph = read_rows(output)
        if graph is None:
            return dict.fromkeys(self.scores, 0.0)
        met = [holds(line, graph) for line in item.meta["requirements"]]
        return {"valid": float(all(met)), "share": sum(met) / len(met), "parses": 1.0}

    def stands(self, item: Item, output: str) -> bool:
        return self.score(item, output)["valid"] == 1

    def again(self, item: Item, seed: int, attempt: int) -> tuple[Item, Callable[[str], str]]:
        """Return the requirements in another order, for a graph in another lettering.

        Letters are exchanged between vertices of equal degree only, because all questions have the degrees in falling
        order. If they are not given, the letters stay.
        """
        rng = random.Random(f"graphs attempt {seed} {attempt}")
        lines = list(item.meta["requirements"])
        order = _order(lines, rng)
        first, *others = [renamed(line, order) for line in lines]
        rng.shuffle(others)

        def back(output: str) -> str:
            graph = read_rows(output)
            if graph is None or len(graph) != len(order):
                return output
            return rows(relabelled(graph, [order.index(vertex) for vertex in range(len(order))]))

        return replace(item, prompt=prompt_of((first, *others))), back


class Easy(Graphs):
    levels = ("easy",)


class Medium(Graphs):
    levels = ("medium",)


class Hard(Graphs):
    levels = ("hard",)


def prompt_of(requirements: tuple[str, ...]) -> str:
    return "\n".join((*requirements, "graph:", ""))


def item_of(question: Question, name: str) -> Item:
    meta = {"requirements": question.requirements}
    return Item(name=name, prompt=prompt_of(question.requirements), expected=rows(question.graph), meta=meta)


def _order(lines: list[str], rng: random.Random) -> list[int]:
    """Return a random order of the vertices that leaves the line of the degrees as it is."""
    read = {name: numbers for name, _, numbers in map(parsed, lines)}
    vertices = range(read["vertices"][0])
    if "degrees" not in read:
        return list(vertices)
    return sorted(vertices, key=lambda vertex: (-read["degrees"][vertex], rng.random()))

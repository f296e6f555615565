"""Training rows for holes in small classes and functions, which follow from the code around the hole.

Lines of real source rarely follow from a few hundred characters around them, so a model that is trained on them alone
learns what usually appears in such a place. Here the missing line is certain, and so is its end.
"""

import random
from collections.abc import Iterator
from keyword import iskeyword
from typing import Any

from gesso.eval.python_infill import prompt
from gesso.eval.structured.words import made_up, word
from gesso.eval.task import check_draw, split_of

FREE = 0.25  # share of rows without a suffix, where a class or function is continued
INSIDE = 0.2  # share of holes that begin inside their line
LETTERS = "abcdefghijklmnopqrstuvwxyz"


def training_rows(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield rows of `prompt` and `completion`."""
    check_draw("train", count)
    for n in range(count):
        yield _row(random.Random(f"small classes {seed} {n}"))


def _row(rng: random.Random) -> dict[str, Any]:
    free = rng.random() < FREE
    lines, assignments = (small_function(rng), []) if rng.random() < 0.3 else small_class(rng)
    if free:
        first = rng.randint(1, len(lines) - 1)
        before, missing, after = "\n".join(lines[:first]) + "\n", "\n".join(lines[first:]) + "\n", None
    else:
        first = rng.choice(assignments) if assignments and rng.random() < 0.7 else rng.randrange(1, len(lines))
        while not lines[first].strip():
            first = rng.randrange(1, len(lines))
        last = first + 1
        if rng.random() < 0.15 and first in assignments:  # all of the following assignments
            last = assignments[-1] + 1
        before = "".join(f"{line}\n" for line in lines[:first])
        missing = "\n".join(lines[first:last])
        after = "".join(f"\n{line}" for line in lines[last:]) + "\n"
    if rng.random() < INSIDE:
        cut = rng.randint(0, max(0, len(missing.split("\n")[0]) - 1))
        before, missing = before + missing[:cut], missing[cut:]
    if rng.random() < 0.3:  # other code above
        before = f"{_above(rng)}\n\n\n{before}"
    return {"prompt": before if after is None else prompt(before, after), "completion": missing}


def _above(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return f"from {_name(rng)} import {_name(rng)}"
    lines, _ = small_class(rng)
    return "\n".join(lines)


def small_class(rng: random.Random) -> tuple[list[str], list[int]]:
    """Return the lines of a class, and the indices of the assignments in its `__init__`."""
    name = "".join(word(rng.choice(("noun", "adj")), "train", rng).capitalize() for _ in range(rng.choice((1, 1, 2))))
    attributes = _attributes(rng)
    lines = [f"class {name}:"]
    if rng.random() < 0.15:
        lines.append(f'    """A {name.lower()} with {" and ".join(attributes)}."""')
    default = f"={rng.randint(0, 9)}" if rng.random() < 0.1 else ""
    lines.append(f"    def __init__(self, {', '.join(attributes)}{default}):")
    assignments = [len(lines) + i for i in range(len(attributes))]
    private = "_" if rng.random() < 0.08 else ""
    lines += [f"        self.{private}{one} = {one}" for one in attributes]
    for _ in range(rng.choice((0, 1, 1, 1, 2))):
        lines += ["", *_method(name, [f"{private}{one}" for one in attributes], rng)]
    return lines, assignments


def small_function(rng: random.Random) -> list[str]:
    """Return the lines of a function whose name and arguments decide its body."""
    one, two, many = rng.choice("abcdijklmnuvwxy"), rng.choice("efghopqrstz"), f"{word('noun', 'train', rng)}s"
    bodies = {
        f"mean({many})": [f"return sum({many}) / len({many})"],
        f"average({many})": [f"return sum({many}) / len({many})"],
        f"total({many})": [f"return sum({many})"],
        f"largest({many})": [f"return max({many})"],
        f"smallest({many})": [f"return min({many})"],
        f"count({many})": [f"return len({many})"],
        f"add({one}, {two})": [f"return {one} + {two}"],
        f"subtract({one}, {two})": [f"return {one} - {two}"],
        f"multiply({one}, {two})": [f"return {one} * {two}"],
        f"square({one})": [f"return {one} * {one}"],
        f"is_even({one})": [f"return {one} % 2 == 0"],
        f"first({many})": [f"return {many}[0]"],
        f"last({many})": [f"return {many}[-1]"],
        f"backwards({many})": [f"return {many}[::-1]"],
        f"swap({one}, {two})": [f"return {two}, {one}"],
        f"fib({one})": [f"if {one} < 2:", f"    return {one}", f"return fib({one} - 1) + fib({one} - 2)"],
        f"factorial({one})": [f"if {one} < 2:", "    return 1", f"return {one} * factorial({one} - 1)"],
    }
    name = rng.choice(list(bodies))
    return [f"def {name}:", *(f"    {line}" for line in bodies[name])]


def _attributes(rng: random.Random) -> list[str]:
    count = rng.choice((1, 2, 2, 2, 3, 3, 4))
    if rng.random() < 0.35:  # letters, in order or not
        first = rng.randint(0, len(LETTERS) - count)
        run = list(LETTERS[first : first + count])
        return run if rng.random() < 0.6 else rng.sample(LETTERS, count)
    names: dict[str, None] = {}
    while len(names) < count:
        names[_name(rng)] = None
    return list(names)


def _name(rng: random.Random) -> str:
    kind = rng.random()
    if kind < 0.6:
        return word("noun", "train", rng)  # none is a keyword
    if kind < 0.8:
        return f"{word('adj', 'train', rng)}_{word('noun', 'train', rng)}"
    while True:
        name = made_up("train", rng)
        if split_of(name) == "train":
            return name


def _method(name: str, attributes: list[str], rng: random.Random) -> list[str]:
    of_self = [f"self.{one}" for one in attributes]
    joined = ", ".join(of_self)
    shown = ", ".join("{" + one + "}" for one in of_self)
    named = ", ".join(f"{one}={{self.{one}}}" for one in attributes)
    verb, other = word("verb", "train", rng), word("noun", "train", rng)
    verb = f"{verb}_all" if iskeyword(verb) else verb
    return rng.choice(
        (
            ["    def __repr__(self):", f'        return f"{name}({shown})"'],
            ["    def __repr__(self):", f'        return f"{name}({named})"'],
            ["    def __str__(self):", f'        return f"{" ".join("{" + one + "}" for one in of_self)}"'],
            [f"    def {verb}(self):", f"        return {' + '.join(of_self)}"],
            [f"    def {verb}(self):", f"        return {' * '.join(of_self)}"],
            [f"    def {verb}(self):", f"        return {other}({joined})"],
            [f"    def {verb}_{other}(self):", f"        return ({joined},)"],
            [
                f"    def {verb}(self, {other}):",
                f"        return {name}({', '.join(f'{o} + {other}' for o in of_self)})",
            ],
            ["    def __eq__(self, other):", f"        return ({joined},) == ({joined.replace('self', 'other')},)"],
            ["    def as_dict(self):", f"        return {{{', '.join(f'{one!r}: self.{one}' for one in attributes)}}}"],
        )
    )

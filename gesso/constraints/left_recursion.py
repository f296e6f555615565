"""Remove left recursion from a grammar: `sum ::= sum "+" term | term` becomes `sum ::= term ("+" term)*`.

A rule that begins with itself would be entered again and again without reading a text.
"""

from graphlib import CycleError, TopologicalSorter

from gesso.constraints.grammar_parser import Grammar, Node, Use
from gesso.constraints.syntax import Alternatives, Repetition, Sequence
from gesso.errors import InputError

MAX_ALTERNATIVES = 200  # of one rule, once uses of rules are replaced by their definitions
MAX_NODES = 3000  # of its tree

Row = tuple[Node, ...]  # one alternative of a rule: nodes in a sequence


def without_left_recursion(grammar: Grammar, names: list[str]) -> dict[str, Node]:
    """Return the trees of the rules, none of which begins with itself. Reject recursion that cannot be removed."""
    trees = {name: grammar.trees[name] for name in names}
    done: set[str] = set()
    while cycle := _cycle(trees):
        if done & set(cycle):  # parts that may be empty lead back to it
            raise _refused(grammar, cycle)
        _remove(grammar, trees, cycle)
        done |= set(cycle)
    return trees


def uses(node: Node) -> list[Use]:
    """Return all uses of rules in a tree."""
    match node:
        case Use():
            return [node]
        case Sequence(items) | Alternatives(items):
            return [use for item in items for use in uses(item)]
        case Repetition(item):
            return uses(item)
    return []


def nullable_rules(trees: dict[str, Node]) -> set[str]:
    """Return the rules that match the empty text."""
    users: dict[str, list[str]] = {}
    for name, tree in trees.items():
        for use in uses(tree):
            users.setdefault(use.name, []).append(name)
    nullable: set[str] = set()
    waiting = list(trees)
    while waiting:
        name = waiting.pop()
        if name not in nullable and _is_nullable(trees[name], nullable):
            nullable.add(name)
            waiting.extend(users.get(name, ()))
    return nullable


def _is_nullable(node: Node, nullable: set[str]) -> bool:
    match node:
        case Use(name):
            return name in nullable
        case Sequence(items):
            return all(_is_nullable(item, nullable) for item in items)
        case Alternatives(items):
            return any(_is_nullable(item, nullable) for item in items)
        case Repetition(item, low):
            return low == 0 or _is_nullable(item, nullable)
    return node.nullable


def leading(node: Node, nullable: set[str]) -> list[Use]:
    """Return the rules with which the text of a node can start."""
    match node:
        case Use():
            return [node]
        case Alternatives(items):
            return [use for item in items for use in leading(item, nullable)]
        case Repetition(item):
            return leading(item, nullable)
        case Sequence(items):
            last = next((i for i, item in enumerate(items) if not _is_nullable(item, nullable)), len(items))
            return [use for item in items[: last + 1] for use in leading(item, nullable)]
    return []


def _cycle(trees: dict[str, Node]) -> list[str]:
    """Return rules that all begin with each other: a strongly connected component. None without left recursion."""
    nullable = nullable_rules(trees)
    begins = {name: {use.name for use in leading(tree, nullable)} for name, tree in trees.items()}
    try:
        TopologicalSorter(begins).prepare()
    except CycleError as error:
        name = error.args[1][0]
        users: dict[str, set[str]] = {}
        for user, used in begins.items():
            for other in used:
                users.setdefault(other, set()).add(user)
        both = _connected(name, begins) & _connected(name, users)
        return [other for other in trees if other in both]
    return []


def _connected(name: str, graph: dict[str, set[str]]) -> set[str]:
    """Return all rules to which a path leads from a rule."""
    reached = {name}
    waiting = [name]
    while waiting:
        new = graph.get(waiting.pop(), set()) - reached
        reached |= new
        waiting += new
    return reached


def _nodes(node: Node) -> int:
    match node:
        case Sequence(items) | Alternatives(items):
            return 1 + sum(map(_nodes, items))
        case Repetition(item):
            return 1 + _nodes(item)
    return 1


def _remove(grammar: Grammar, trees: dict[str, Node], cycle: list[str]) -> None:
    """Rewrite the rules of a cycle with Paull's algorithm: each begins with later ones only, then loops on itself."""
    nullable = nullable_rules(trees)
    rows: dict[str, list[Row]] = {}
    for name in cycle:
        expanded: list[Row] = []  # in reverse order
        waiting: list[Row] = [(trees[name],)]
        while waiting:
            row = waiting.pop()
            if len(expanded) + len(waiting) > MAX_ALTERNATIVES:
                raise _refused(grammar, cycle)
            head = row[0] if row else None
            if isinstance(head, Use) and head.name in rows:
                waiting += [(*inner, *row[1:]) for inner in rows[head.name]]
                continue
            opened = _opened(row, set(cycle), trees, nullable)
            if opened is None:
                expanded.append(row)
            else:
                waiting += opened
        recursive = [row[1:] for row in expanded if _begins_with(row, name)]
        ends = [row for row in expanded if not _begins_with(row, name)]
        tails = [row for row in recursive if row]
        loop: Row = (Repetition(item=_one_of(tails), low=0, high=None),) if tails else ()
        rows[name] = [(*row, *loop) for row in reversed(ends)]
        trees[name] = _one_of(rows[name])
        if _nodes(trees[name]) > MAX_NODES:
            raise _refused(grammar, cycle)


def _begins_with(row: Row, name: str) -> bool:
    return bool(row) and isinstance(row[0], Use) and row[0].name == name


def _one_of(rows: list[Row]) -> Node:
    options: list[Node] = [Sequence(row) for row in rows]
    return options[0] if len(options) == 1 else Alternatives(tuple(options))


def _opened(row: Row, cycle: set[str], trees: dict[str, Node], nullable: set[str]) -> list[Row] | None:
    """Expand the head of a row if a rule of the cycle can begin there; None if it cannot."""
    if not row or not any(use.name in cycle for use in leading(Sequence(row), nullable)):
        return None
    head, rest = row[0], row[1:]
    match head:
        case Use(name) if name not in cycle:
            return [(trees[name], *rest)]
        case Sequence(items):
            return [(*items, *rest)]
        case Alternatives(items):
            return [(item, *rest) for item in items]
        case Repetition(item, 0, 1):
            return [rest, (item, *rest)]
        case Repetition(item, low, high) if low == 0 and not _is_nullable(item, nullable):
            fewer: Node = Repetition(item=item, low=0, high=None if high is None else high - 1)
            return [rest, (item, fewer, *rest)]
        case Repetition(item, low, high) if not _is_nullable(item, nullable):
            fewer = Repetition(item=item, low=low - 1, high=None if high is None else high - 1)
            return [(item, fewer, *rest)]
    return None


def _refused(grammar: Grammar, cycle: list[str]) -> InputError:
    name = cycle[0]
    through = f" through {', '.join(map(repr, cycle[1:6]))}" if len(cycle) > 1 else ""
    return grammar.error(
        grammar.defined[name],
        f"left recursion: {name!r} starts with itself{through}. Put a literal or class first, or use * or +.",
    )

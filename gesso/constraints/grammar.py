"""Compile a grammar, in the EBNF that llama.cpp and vLLM read, to a regular expression.

    root   ::= "[" (number ("," number)*)? "]"   # name ::= definition; the whole text is a `root`
    number ::= "-"? [0-9]{1,3} | 'none'

Literals are in single or double quotes, classes in brackets. `.` is any character, `|` separates alternatives, and
`* + ? {2} {2,} {2,5}` repeat the item before them. Escapes: `\\n \\r \\t \\xHH \\uHHHH \\UHHHHHHHH`, and `\\` before
any sign. A rule that ends with itself becomes a loop. All other recursion is unrolled to `limits.depth` levels.
"""

from graphlib import CycleError, TopologicalSorter

from gesso.constraints.grammar_parser import MAX_NEST, Grammar, Node, Rule
from gesso.constraints.limits import Limits
from gesso.constraints.regex import EMPTY, Regex, alt, check_size, repeat, seq
from gesso.constraints.syntax import Choice, Repeat, Sequence
from gesso.errors import InputError

ROOT = "root"

Depths = frozenset[tuple[str, int]]  # how often each rule was entered on the way to a node


def grammar_regex(text: str, *, limits: Limits = Limits()) -> str:  # noqa: B008 (immutable)
    """Return a regular expression, in the syntax of Rust's `regex` crate, for the whole text."""
    if len(text) > limits.schema_bytes:
        raise InputError(
            f"the grammar is longer than {limits.schema_bytes:,} characters (limits.schema_bytes); "
            "shorten it or raise the limit"
        )
    grammar = Grammar(text)
    _check_names(grammar)
    _check_left_recursion(grammar)
    found = _Compiler(grammar, limits).rule(ROOT, frozenset(), 0)
    if found is None:
        raise InputError(
            f"the grammar has no end: within {limits.depth} levels (limits.depth) its rules produce no text. "
            "Give each recursive rule an alternative that does not use it."
        )
    return found.text


def _check_names(grammar: Grammar) -> None:
    """Reject rules that are missing or never used."""
    if ROOT not in grammar.trees:
        raise InputError(f"the grammar has no rule {ROOT!r}; define the whole text as {ROOT} ::= ...")
    used, waiting = {ROOT}, [ROOT]
    while waiting:
        for rule in _rules(grammar.trees[waiting.pop()]):
            if rule.name not in grammar.trees:
                raise grammar.error(rule.at, f"there is no rule {rule.name!r}")
            if rule.name not in used:
                used.add(rule.name)
                waiting.append(rule.name)
    for name, at in grammar.defined.items():
        if name not in used:
            raise grammar.error(at, f"the rule {name!r} is never used; remove it")


def _check_left_recursion(grammar: Grammar) -> None:
    nullable = _nullable_rules(grammar)
    leading = {name: _leading(tree, nullable) for name, tree in grammar.trees.items()}
    try:
        TopologicalSorter({name: [rule.name for rule in rules] for name, rules in leading.items()}).prepare()
    except CycleError as error:
        name, user = error.args[1][:2]
        at = next(rule.at for rule in leading[user] if rule.name == name)
        advice = "Put a literal or class first, or use * or +."
        raise grammar.error(at, f"left recursion: {name!r} starts with itself. {advice}") from None


def _rules(node: Node) -> list[Rule]:
    """Return all uses of rules in a tree."""
    match node:
        case Rule():
            return [node]
        case Sequence(items) | Choice(items):
            return [rule for item in items for rule in _rules(item)]
        case Repeat(item):
            return _rules(item)
    return []


def _nullable_rules(grammar: Grammar) -> set[str]:
    """Return the rules that match the empty text."""
    users: dict[str, list[str]] = {}
    for name, tree in grammar.trees.items():
        for rule in _rules(tree):
            users.setdefault(rule.name, []).append(name)
    nullable: set[str] = set()
    waiting = list(grammar.trees)
    while waiting:
        name = waiting.pop()
        if name not in nullable and _is_nullable(grammar.trees[name], nullable):
            nullable.add(name)
            waiting.extend(users.get(name, ()))
    return nullable


def _is_nullable(node: Node, nullable: set[str]) -> bool:
    match node:
        case Rule(name):
            return name in nullable
        case Sequence(items):
            return all(_is_nullable(item, nullable) for item in items)
        case Choice(items):
            return any(_is_nullable(item, nullable) for item in items)
        case Repeat(item, low):
            return low == 0 or _is_nullable(item, nullable)
    return node == EMPTY


def _leading(node: Node, nullable: set[str]) -> list[Rule]:
    """Return the rules with which the text of a node can start."""
    match node:
        case Rule():
            return [node]
        case Choice(items):
            return [rule for item in items for rule in _leading(item, nullable)]
        case Repeat(item):
            return _leading(item, nullable)
        case Sequence(items):
            last = next((i for i, item in enumerate(items) if not _is_nullable(item, nullable)), len(items))
            return [rule for item in items[: last + 1] for rule in _leading(item, nullable)]
    return []


def _endings(items: tuple[Node, ...], name: str) -> list[tuple[Node, ...]]:
    """Expand a sequence into alternatives, so that a rule at its very end becomes the last item."""
    last = items[-1] if items else EMPTY
    if not any(rule.name == name for rule in _rules(last)):
        return [items]
    match last:
        case Sequence(inner):
            return _endings((*items[:-1], *inner), name)
        case Choice(options):
            return [ending for option in options for ending in _endings((*items[:-1], option), name)]
        case Repeat(item, 0, 1):
            return [items[:-1], *_endings((*items[:-1], item), name)]
    return [items]


class _Compiler:
    def __init__(self, grammar: Grammar, limits: Limits) -> None:
        self.grammar, self.limits, self.visited = grammar, limits, 0
        self.known: dict[tuple[str, Depths], Regex | None] = {}

    def rule(self, name: str, depths: Depths, nest: int) -> Regex | None:
        """Compile a rule; None beyond `limits.depth` levels of recursion."""
        entered = dict(depths)
        entered[name] = entered.get(name, 0) + 1
        if entered[name] > self.limits.depth:
            return None
        key = name, frozenset(entered.items())
        if key not in self.known:
            self.known[key] = self._loop(*key, nest)
        return self.known[key]

    def _loop(self, name: str, depths: Depths, nest: int) -> Regex | None:
        """Compile a rule that ends with itself to a loop.

        `list ::= item "," list | item` is `(item ",")* item`, to any depth.
        """
        again: list[Regex | None] = []
        ends: list[Regex | None] = []
        for items in _endings((self.grammar.trees[name],), name):
            last = items[-1] if items else EMPTY
            if isinstance(last, Rule) and last.name == name:
                again.append(self._node(Sequence(items[:-1]), depths, nest))
            else:
                ends.append(self._node(Sequence(items), depths, nest))
        repeated, end = alt(again), alt(ends)
        check_size([repeated, end], self.limits, f"the rule {name!r}")
        return seq(repeat(repeated, 0, None), end)

    def _node(self, node: Node, depths: Depths, nest: int) -> Regex | None:
        self.visited += 1
        if self.visited > self.limits.regex_chars // 20:
            raise InputError("the grammar is too large after its recursion is unrolled; lower limits.depth")
        if nest > MAX_NEST:
            raise InputError(f"the grammar nests deeper than {MAX_NEST} levels of rules and groups; flatten it")
        match node:
            case Rule(name):
                return self.rule(name, depths, nest + 1)
            case Choice(items) | Sequence(items):
                parts = [self._node(item, depths, nest + 1) for item in items]
                check_size(parts, self.limits, "the grammar")
                return alt(parts) if isinstance(node, Choice) else seq(*parts)
            case Repeat(item, low, high):
                return repeat(self._node(item, depths, nest + 1), low, high)
        return node

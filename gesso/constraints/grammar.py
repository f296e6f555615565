"""Compile a grammar to a term, with recursion to any depth. There are two notations, told apart by their definitions.

The EBNF that llama.cpp and vLLM read:

    root   ::= "[" (number ("," number)*)? "]"   # name ::= definition; the whole text is a `root`
    number ::= "-"? [0-9]{1,3} | 'none'

Literals are in single or double quotes, classes in brackets. `.` is any character, `|` separates alternatives, and
`* + ? {2} {2,} {2,5}` repeat the item before them. Escapes: `\\n \\r \\t \\xHH \\uHHHH \\UHHHHHHHH`, and `\\` before
any sign. `lark` describes the other notation.
"""

import re

from gesso.constraints.grammar_parser import Grammar, Node, Use
from gesso.constraints.lark import LarkGrammar
from gesso.constraints.left_recursion import leading, nullable_rules, uses, without_left_recursion
from gesso.constraints.limits import Limits
from gesso.constraints.settle import settle
from gesso.constraints.syntax import Alternatives, Repetition, Sequence
from gesso.constraints.term import FAR, Term
from gesso.constraints.terms import NamedTerm, alt, repeat, seq
from gesso.errors import InputError

MAX_INLINE = 100  # nodes of a rule that is put in the place of its uses
MAX_DEPTH = 60  # rules that begin with each other; each of them costs stack when a text is read

_EBNF = re.compile(r"^\s*[A-Za-z_][\w-]*\s*::=", re.MULTILINE)
_LARK = re.compile(r"^\s*(?:%|[?!]*[A-Za-z_]\w*(?:\.-?\d+)?\s*:(?!:=))", re.MULTILINE)


def grammar_term(text: str, *, limits: Limits = Limits()) -> Term:  # noqa: B008 (immutable)
    """Return the texts of a grammar."""
    if len(text) > limits.schema_bytes:
        raise InputError(
            f"the grammar is longer than {limits.schema_bytes:,} characters (limits.schema_bytes); "
            "shorten it or raise the limit"
        )
    is_lark = _LARK.search(text) and not _EBNF.search(text)
    grammar = LarkGrammar(text, limits) if is_lark else Grammar(text)
    order = _reached(grammar)
    trees = without_left_recursion(grammar, order)
    _check_depth(grammar, trees)
    term = _GrammarCompiler(trees).compiled(order)
    if term.least >= FAR:
        raise InputError(
            "the grammar has no end: its rules produce no text. "
            "Give each recursive rule an alternative that does not use it."
        )
    return term


def _reached(grammar: Grammar) -> list[str]:
    """Return the rules that the root uses, each after those that it uses, except in cycles. Reject missing rules."""
    if grammar.root not in grammar.trees:
        raise InputError(f"the grammar has no rule {grammar.root!r}; define the whole text as {grammar.example}")
    order: list[str] = []
    entered = {grammar.root}
    path = [(grammar.root, iter(uses(grammar.trees[grammar.root])))]
    while path:
        name, left = path[-1]
        use = next(left, None)
        if use is None:
            order.append(name)
            path.pop()
        elif use.name not in grammar.trees:
            raise grammar.error(use.at, f"there is no rule {use.name!r}")
        elif use.name not in entered:
            entered.add(use.name)
            path.append((use.name, iter(uses(grammar.trees[use.name]))))
    if grammar.all_used:
        for name, at in grammar.defined.items():
            if name not in entered:
                raise grammar.error(at, f"the rule {name!r} is never used; remove it")
    return order


def _check_depth(grammar: Grammar, trees: dict[str, Node]) -> None:
    """Reject long chains of rules that begin with each other. There are no cycles among them."""
    nullable = nullable_rules(trees)
    depth: dict[str, int] = {}
    for start in trees:
        path = [start]
        while path:
            name = path[-1]
            inner = [use.name for use in leading(trees[name], nullable)]
            missing = [other for other in inner if other not in depth]
            if missing:
                path += missing
                continue
            plain = isinstance(trees[name], Use)  # another name for a rule costs nothing
            depth[name] = max((depth[other] for other in inner), default=0) + (not plain)
            path.pop()
            if depth[name] > MAX_DEPTH:
                raise grammar.error(
                    grammar.defined[name], f"more than {MAX_DEPTH} rules begin with each other from here; join some"
                )


class _GrammarCompiler:
    """Compiles the trees of rules to terms."""

    def __init__(self, trees: dict[str, Node]) -> None:
        self.trees = trees
        self.terms: dict[str, Term] = {}  # of the rules compiled so far
        self.sizes: dict[str, int] = {}  # of the rules that are put in the place of their uses

    def compiled(self, order: list[str]) -> Term:
        rules: list[NamedTerm] = []
        for name in order:
            tree = self.trees[name]
            size = self._size(tree)
            if size is not None and size <= MAX_INLINE:
                self.sizes[name] = size
            elif not isinstance(tree, Use) or tree.name not in self.terms:
                rule = NamedTerm(name)
                self.terms[name] = rule
                rules.append(rule)
                continue
            self.terms[name] = self._term(tree)
        for rule in rules:
            rule.body = self._term(self.trees[rule.name])
        settle(rules)
        return self.terms[order[-1]]

    def _size(self, node: Node) -> int | None:
        """Return the number of nodes; None if rules remain in it."""
        match node:
            case Use(name):
                return self.sizes.get(name)
            case Sequence(items) | Alternatives(items):
                sizes = [self._size(item) for item in items]
                return None if None in sizes else 1 + sum(size or 0 for size in sizes)
            case Repetition(item):
                size = self._size(item)
                return None if size is None else 1 + size
        return 1

    def _term(self, node: Node) -> Term:
        match node:
            case Use(name):
                return self.terms[name]
            case Alternatives(items):
                return alt(self._term(item) for item in items)
            case Sequence(items):
                return seq(*(self._term(item) for item in items))
            case Repetition(item, low, high):
                return repeat(self._term(item), low, high)
        return node
